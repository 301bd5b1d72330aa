# One flex node of an AKS cluster.
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

variable "node_name" {
  type        = string
  description = "The node. In the cluster it has this name in lower case."
}

variable "client_id" {
  type        = string
  description = "Of the service principal that the machine is to Azure; null: it is nobody, and joins by a token."
  default     = null
}

variable "client_secret" {
  type        = string
  description = "Its secret."
  default     = null
  sensitive   = true
  ephemeral   = true
}

variable "client_secret_version" {
  type        = string
  description = "Its secret is sent when this changes; the service keeps what was sent before."
  default     = "1"
}

variable "labels" {
  type        = map(string)
  description = "Labels of the node."
  default     = {}
}

variable "kubernetes_version" {
  type        = string
  description = "Of the kubelet; null: the cluster's."
  default     = null
}

variable "issue_config_url" {
  type        = bool
  description = "Make a config URL when this becomes true. It is then in the state of Terraform, in plain text."
  default     = false
}

resource "azapi_resource" "node" {
  type      = "Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview"
  name      = var.node_name
  parent_id = var.cluster_id

  # The provider of Terraform does not have the schema of a preview.
  schema_validation_enabled = false
  response_export_values    = ["properties.configVersion"]

  body = {
    properties = {
      continuousMonitoring = var.client_id != null
      azureAuth = {
        method           = var.client_id == null ? "none" : "servicePrincipal"
        servicePrincipal = var.client_id == null ? null : { clientId = var.client_id }
      }
      kubernetesAuth = {
        useAzureAuth = var.client_id != null
        method       = var.client_id == null ? "bootstrapToken" : "certificate"
      }
      versions = {
        kubernetes = var.kubernetes_version
      }
      nodeConfig = {
        labels      = var.labels
        maxPods     = 110
        driftPolicy = "repair"
      }
    }
  }

  # Sent with the rest, and kept nowhere.
  sensitive_body = var.client_secret == null ? null : {
    properties = {
      azureAuth = {
        servicePrincipal = {
          clientSecret = var.client_secret
        }
      }
    }
  }
  sensitive_body_version = {
    "properties.azureAuth.servicePrincipal.clientSecret" = var.client_secret_version
  }
}

resource "azapi_resource_action" "config_url" {
  count = var.issue_config_url ? 1 : 0

  type        = "Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview"
  resource_id = azapi_resource.node.id
  action      = "listConfigUrl"
  method      = "POST"

  response_export_values           = []
  sensitive_response_export_values = ["configUrl"]
}

output "node_id" {
  value = azapi_resource.node.id
}

output "config_url" {
  value     = one(azapi_resource_action.config_url[*].sensitive_output.configUrl)
  sensitive = true
}
