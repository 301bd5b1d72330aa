metadata description = 'Many flex nodes of an AKS cluster, alike but for what each says of itself.'

@description('The cluster, in the resource group of the deployment.')
param clusterName string

@description('Each with its name and, where it has them, clientId, principalId, labels and taints of its own.')
@minLength(1)
@maxLength(800)
param nodes array

@description('Secrets of service principals by the name of the node. One that is missing is kept as it was written before.')
@secure()
param clientSecrets object = {}

@description('Who the machine is to Azure.')
@allowed(['none', 'servicePrincipal', 'managedIdentity', 'arc'])
param azureAuthMethod string = 'none'

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

@description('Labels of all nodes.')
param labels object = {}

@description('Taints that all nodes register with: key, value, effect.')
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

resource cluster 'Microsoft.ContainerService/managedClusters@2025-01-01' existing = {
  name: clusterName
}

resource flexNodes 'Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview' = [for node in nodes: {
  parent: cluster
  name: node.name
  properties: {
    continuousMonitoring: continuousMonitoring
    azureAuth: {
      method: azureAuthMethod
      servicePrincipal: azureAuthMethod != 'servicePrincipal' ? null : {
        clientId: node.?clientId
        clientSecret: clientSecrets[?node.name]
      }
      managedIdentity: azureAuthMethod != 'managedIdentity' ? null : {
        clientId: node.?clientId
        principalId: node.?principalId
      }
      arc: azureAuthMethod != 'arc' ? null : {
        principalId: node.?principalId
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
      labels: union(labels, node.?labels ?? {})
      taints: concat(taints, node.?taints ?? [])
      maxPods: maxPods
      kubelet: empty(kubelet) ? null : kubelet
      driftPolicy: driftPolicy
    }
  }
}]

output nodeIds array = [for (node, index) in nodes: flexNodes[index].id]
