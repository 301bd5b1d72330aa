metadata description = 'One flex node of an AKS cluster.'

@description('The cluster, in the resource group of the deployment.')
param clusterName string

@description('The node. In the cluster it has this name in lower case.')
@minLength(1)
@maxLength(63)
param nodeName string

@description('Who the machine is to Azure.')
@allowed(['none', 'servicePrincipal', 'managedIdentity', 'arc'])
param azureAuthMethod string = 'none'

@description('Of a service principal, or of a managed identity of your own.')
param clientId string = ''

@description('Of a service principal. Empty: the one that was written before is kept.')
@secure()
param clientSecret string = ''

@description('Object id of a managed identity that is the machine\'s own, or of an Arc machine.')
param principalId string = ''

@description('What the kubelet shows the cluster. All but bootstrapToken need an identity in Azure; certificate is the safer of those.')
@allowed(['bootstrapToken', 'certificate', 'exec'])
param kubernetesAuthMethod string = 'bootstrapToken'

@description('Whether the agent stays, and follows this resource. It needs an identity in Azure.')
param continuousMonitoring bool = false

@description('Of the kubelet, such as 1.34.4; empty: the cluster\'s.')
param kubernetesVersion string = ''

@description('Empty: one that was tested with that kubelet.')
param containerdVersion string = ''

@description('Empty: one that was tested with that kubelet.')
param runcVersion string = ''

@description('Labels of the node.')
param labels object = {}

@description('Taints that the node registers with: key, value, effect.')
param taints array = []

@description('How many pods a node may run.')
@minValue(1)
@maxValue(1024)
param maxPods int = 110

@description('Further settings of the kubelet: nodeConfig.kubelet of the API.')
param kubelet object = {}

@description('What the agent does about changes made by hand.')
@allowed(['log', 'repair'])
param driftPolicy string = 'repair'

@description('Make a config URL, and end the one before. Its output is secure: see docs/how-to/templates.md.')
param issueConfigUrls bool = false

resource cluster 'Microsoft.ContainerService/managedClusters@2025-01-01' existing = {
  name: clusterName
}

resource node 'Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview' = {
  parent: cluster
  name: nodeName
  properties: {
    continuousMonitoring: continuousMonitoring
    azureAuth: {
      method: azureAuthMethod
      servicePrincipal: azureAuthMethod != 'servicePrincipal' ? null : {
        clientId: clientId
        clientSecret: empty(clientSecret) ? null : clientSecret
      }
      managedIdentity: azureAuthMethod != 'managedIdentity' ? null : {
        clientId: empty(clientId) ? null : clientId
        principalId: empty(principalId) ? null : principalId
      }
      arc: azureAuthMethod != 'arc' ? null : {
        principalId: empty(principalId) ? null : principalId
      }
    }
    kubernetesAuth: {
      useAzureAuth: kubernetesAuthMethod != 'bootstrapToken'
      method: kubernetesAuthMethod
    }
    versions: {
      kubernetes: empty(kubernetesVersion) ? null : kubernetesVersion
      containerd: empty(containerdVersion) ? null : containerdVersion
      runc: empty(runcVersion) ? null : runcVersion
    }
    nodeConfig: {
      labels: labels
      taints: taints
      maxPods: maxPods
      kubelet: empty(kubelet) ? null : kubelet
      driftPolicy: driftPolicy
    }
  }
}

output nodeId string = node.id

@secure()
output configUrl string = issueConfigUrls ? node.listConfigUrl().configUrl : ''
