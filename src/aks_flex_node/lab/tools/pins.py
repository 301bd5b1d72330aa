"""Hashes of release files that are known beforehand, so that a publisher's checksum file is not the only witness.

They were taken from the checksum list that the Kubespray project keeps, which holds the publishers' own figures. A
build needs none: go.sum pins every module it reads.
"""

from __future__ import annotations

K8S = "dl.k8s.io/v1.34.4/bin/linux"
CNI = "github.com/containernetworking/plugins/releases/download/v1.7.1/cni-plugins-linux"

SHA256 = {
    f"{K8S}/amd64/kubelet": "03b8fea715a7ef82eeaf518dee34c72670c57cc7bc40dc1320c04fbf4f15172f",
    f"{K8S}/arm64/kubelet": "c78845473c434ee85a2444eeab87f8b20f524e3ab6854a078f79468f44aad8f5",
    f"{K8S}/amd64/kubectl": "d50c359d95e0841eaad08ddc27c7be37cba8fdccfba5c8e2ded65e121ff112db",
    f"{K8S}/arm64/kubectl": "5b982c0644ab1e27780246b9085a5886651b4a7ed86243acbb2bacc1bea01dda",
    f"{K8S}/amd64/kubeadm": "b967f1fa0e36621c402d38bb560eb4a943954d5cf5a00e5150842f6f5da73455",
    f"{K8S}/arm64/kubeadm": "d8028b7e8c8d6c9b3fc3da6bc88d4d0cfb33df1b4b026a7d6e8c35d1471c9f6e",
    f"{CNI}-amd64-v1.7.1.tgz": "1a28a0506bfe5bcdc981caf1a49eeab7e72da8321f1119b7be85f22621013098",
    f"{CNI}-arm64-v1.7.1.tgz": "119fcb508d1ac2149e49a550752f9cd64d023a1d70e189b59c476e4d2bf7c497",
}
