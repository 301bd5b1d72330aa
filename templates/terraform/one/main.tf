# Creates a flex node of an AKS cluster.
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

variable "node_name" {
  type        = string
  description = "Name of the node. In the cluster the name is lowercase."
}

variable "client_id" {
  type        = string
  description = "Client ID of the service principal of the machine. Null: no identity, the node joins with a bootstrap token."
  default     = null
}

variable "client_secret" {
  type        = string
  description = "Client secret of the service principal."
  default     = null
  sensitive   = true
  ephemeral   = true
}

variable "client_secret_version" {
  type        = string
  description = "The secret is sent when this value changes. Otherwise the service keeps the stored secret."
  default     = "1"
}

variable "labels" {
  type        = map(string)
  description = "Labels of the node."
  default     = {}
}

variable "kubernetes_version" {
  type        = string
  description = "Kubernetes version. Null: the version of the cluster."
  default     = null
}

variable "issue_config_url" {
  type        = bool
  description = "Create a configuration URL when this becomes true. The Terraform state then contains it in plain text."
  default     = false
}

resource "azapi_resource" "node" {
  type      = "Microsoft.ContainerService/managedClusters/flexNodeConfig@2026-05-01-preview"
  name      = var.node_name
  parent_id = var.cluster_id

  # The azapi provider does not contain the schema of a preview API.
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

  # Sent with the request and not stored in the state.
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
