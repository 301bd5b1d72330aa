metadata description = 'Creates a flex node of an AKS cluster.'

@description('Name of the cluster in the resource group of the deployment.')
param clusterName string

@description('Name of the node. In the cluster the name is lowercase.')
@minLength(1)
@maxLength(63)
param nodeName string

@description('Azure identity of the machine.')
@allowed(['none', 'servicePrincipal', 'managedIdentity', 'arc'])
param azureAuthMethod string = 'none'

@description('Client ID of a service principal or user-assigned managed identity.')
param clientId string = ''

@description('Client secret of a service principal. Empty: the stored secret is kept.')
@secure()
param clientSecret string = ''

@description('Object ID of a system-assigned managed identity or of an Arc machine.')
param principalId string = ''

@description('Authentication method of the kubelet. certificate and exec require an Azure identity; certificate is more secure.')
@allowed(['bootstrapToken', 'certificate', 'exec'])
param kubernetesAuthMethod string = 'bootstrapToken'

@description('Whether the node is managed: a daemon applies changes of this resource. Requires an Azure identity.')
param continuousMonitoring bool = false

@description('Kubernetes version, for example 1.36.3. Empty: the version of the cluster.')
param kubernetesVersion string = ''

@description('Empty: the version tested with the Kubernetes version.')
param containerdVersion string = ''

@description('Empty: the version tested with the Kubernetes version.')
param runcVersion string = ''

@description('Labels of the node.')
param labels object = {}

@description('Taints of the node: key, value, effect.')
param taints array = []

@description('Maximum number of pods per node.')
@minValue(1)
@maxValue(1024)
param maxPods int = 110

@description('Additional kubelet settings: nodeConfig.kubelet of the API.')
param kubelet object = {}

@description('Action of the agent on drift.')
@allowed(['log', 'repair'])
param driftPolicy string = 'repair'

@description('Create a configuration URL and revoke the previous one. It is a secure output.')
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
