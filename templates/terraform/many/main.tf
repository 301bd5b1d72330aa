# Many flex nodes of an AKS cluster, each by its name.
terraform {
  required_version = ">= 1.11" # for attributes that are written and never kept in the state

  required_providers {
    azapi = {
      source  = "Azure/azapi"
      version = "~> 2.10"
    }
  }
}

variable "cluster_id" {
  type        = string
  description = "Resource id of the cluster."
}

variable "nodes" {
  type = map(object({
    client_id = optional(string) # of the service principal that the machine is to Azure
    labels    = optional(map(string), {})
    taints    = optional(list(object({ key = string, value = optional(string), effect = string })), [])
  }))
  description = "What is particular about each node, by its name."
}

variable "client_secrets" {
  type        = map(string)
  description = "Secrets of service principals by the name of the node."
  default     = {}
  sensitive   = true
  ephemeral   = true
}

variable "client_secrets_version" {
  type        = string
  description = "Secrets are sent when this changes; the service keeps what was sent before."
  default     = "1"
}

variable "kubernetes_version" {
  type        = string
  description = "Of the kubelets; null: the cluster's."
  default     = null
}

variable "issue_config_urls" {
  type        = bool
  description = "Make config URLs when this becomes true. They are then in the state of Terraform, in plain text."
  default     = false
}

resource "azapi_resource" "node" {
  for_each = var.nodes

  type      = "Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview"
  name      = each.key
  parent_id = var.cluster_id

  # The provider of Terraform does not have the schema of a preview.
  schema_validation_enabled = false
  response_export_values    = ["properties.configVersion"]

  body = {
    properties = {
      continuousMonitoring = each.value.client_id != null
      azureAuth = {
        method           = each.value.client_id == null ? "none" : "servicePrincipal"
        servicePrincipal = each.value.client_id == null ? null : { clientId = each.value.client_id }
      }
      kubernetesAuth = {
        useAzureAuth = each.value.client_id != null
        method       = each.value.client_id == null ? "bootstrapToken" : "certificate"
      }
      versions = {
        kubernetes = var.kubernetes_version
      }
      nodeConfig = {
        labels      = each.value.labels
        taints      = each.value.taints
        maxPods     = 110
        driftPolicy = "repair"
      }
    }
  }

  # Sent with the rest, and kept nowhere. What is null is what was written before.
  sensitive_body = each.value.client_id == null ? null : {
    properties = {
      azureAuth = {
        servicePrincipal = {
          clientSecret = lookup(var.client_secrets, each.key, null)
        }
      }
    }
  }
  sensitive_body_version = {
    "properties.azureAuth.servicePrincipal.clientSecret" = var.client_secrets_version
  }
}

resource "azapi_resource_action" "config_url" {
  for_each = var.issue_config_urls ? var.nodes : {}

  type        = "Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview"
  resource_id = azapi_resource.node[each.key].id
  action      = "listConfigUrl"
  method      = "POST"

  response_export_values           = []
  sensitive_response_export_values = ["configUrl"]
}

output "node_ids" {
  value = { for name, node in azapi_resource.node : name => node.id }
}

output "config_urls" {
  value     = { for name, action in azapi_resource_action.config_url : name => action.sensitive_output.configUrl }
  sensitive = true
}
