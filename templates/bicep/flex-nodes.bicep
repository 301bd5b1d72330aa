metadata description = 'Creates several flex nodes of an AKS cluster with common and individual settings.'

@description('Name of the cluster in the resource group of the deployment.')
param clusterName string

@description('Nodes, each with name and optional clientId, principalId, labels and taints.')
@minLength(1)
@maxLength(800)
param nodes array

@description('Client secrets of service principals by node name. Omitted secrets are kept.')
@secure()
param clientSecrets object = {}

@description('Azure identity of the machine.')
@allowed(['none', 'servicePrincipal', 'managedIdentity', 'arc'])
param azureAuthMethod string = 'none'

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

@description('Labels of all nodes.')
param labels object = {}

@description('Taints of all nodes: key, value, effect.')
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
