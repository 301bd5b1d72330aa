# Creates several flex nodes of an AKS cluster, by name.
terraform {
  required_version = ">= 1.11" # for write-only attributes

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

variable "nodes" {
  type = map(object({
    client_id = optional(string) # client ID of the service principal of the machine
    labels    = optional(map(string), {})
    taints    = optional(list(object({ key = string, value = optional(string), effect = string })), [])
  }))
  description = "Individual settings of each node, by name."
}

variable "client_secrets" {
  type        = map(string)
  description = "Client secrets of service principals by node name."
  default     = {}
  sensitive   = true
  ephemeral   = true
}

variable "client_secrets_version" {
  type        = string
  description = "Secrets are sent when this value changes. Otherwise the service keeps the stored secrets."
  default     = "1"
}

variable "kubernetes_version" {
  type        = string
  description = "Kubernetes version. Null: the version of the cluster."
  default     = null
}

variable "issue_config_urls" {
  type        = bool
  description = "Create configuration URLs when this becomes true. The Terraform state then contains them in plain text."
  default     = false
}

resource "azapi_resource" "node" {
  for_each = var.nodes

  type      = "Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview"
  name      = each.key
  parent_id = var.cluster_id

  # The azapi provider does not contain the schema of a preview API.
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

  # Sent with the request and not stored in the state. Null keeps the stored secret.
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
