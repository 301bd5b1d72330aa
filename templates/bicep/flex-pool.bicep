metadata description = 'Creates a pool of flex nodes of an AKS cluster, and nodes in it.'

@description('Name of the cluster in the resource group of the deployment.')
param clusterName string

@description('Name of the pool: a lowercase letter, then lowercase letters and digits.')
@minLength(1)
@maxLength(12)
param poolName string

@description('Description of the pool.')
@maxLength(256)
param poolDescription string = ''

@description('What the nodes have in common: versions, nodeConfig, continuousMonitoring, azureAuth, kubernetesAuth.')
param template object = {}

@description('Names of the nodes in the pool.')
param nodeNames array = []

resource cluster 'Microsoft.ContainerService/managedClusters@2025-01-01' existing = {
  name: clusterName
}

resource pool 'Microsoft.ContainerService/managedClusters/flexNodePools@2026-05-01-preview' = {
  parent: cluster
  name: poolName
  properties: {
    description: empty(poolDescription) ? null : poolDescription
    template: template
  }
}

resource nodes 'Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview' = [for name in nodeNames: {
  parent: cluster
  name: name
  properties: {
    poolName: pool.name
  }
}]

output poolId string = pool.id
