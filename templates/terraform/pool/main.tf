# Creates a pool of flex nodes of an AKS cluster, and nodes in it.
terraform {
  required_version = ">= 1.11"

  required_providers {
    azapi = {
      source  = "Azure/azapi"
      version = "~> 2.10"
    }
  }
}

variable "cluster_id" {
  type        = string
  description = "Resource ID of the cluster."
}

variable "pool_name" {
  type        = string
  description = "Name of the pool: a lowercase letter, then up to 11 lowercase letters and digits."
}

variable "template" {
  type        = any
  description = "What the nodes have in common: versions, nodeConfig, continuousMonitoring, azureAuth, kubernetesAuth."
  default     = {}
}

variable "node_names" {
  type        = set(string)
  description = "Names of the nodes in the pool."
  default     = []
}

resource "azapi_resource" "pool" {
  type                      = "Microsoft.ContainerService/managedClusters/flexNodePools@2026-05-01-preview"
  parent_id                 = var.cluster_id
  name                      = var.pool_name
  schema_validation_enabled = false
  body = {
    properties = {
      template = var.template
    }
  }
}

resource "azapi_resource" "node" {
  for_each                  = var.node_names
  type                      = "Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview"
  parent_id                 = var.cluster_id
  name                      = each.value
  schema_validation_enabled = false
  body = {
    properties = {
      poolName = azapi_resource.pool.name
    }
  }
}

output "pool_id" {
  value = azapi_resource.pool.id
}
