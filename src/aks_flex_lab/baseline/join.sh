# Runs in a new machine as `bash -s`, with its variables set in the lines before this one.
# Every `phase` line prints the phase that ended, and the time.
set -euo pipefail
phase() { printf 'phase %s %s\n' "$1" "$(date +%s.%N)"; }
phase start

# Download everything in parallel from the publishers' URLs, single programs directly to their paths.
archives=/var/tmp/floor
mkdir -p $archives /opt/cni/bin /opt/floor/npd /usr/local/bin /usr/local/sbin
kubernetes="https://dl.k8s.io/v$KUBERNETES/bin/linux/$ARCH"
releases=https://github.com
curl --silent --show-error --fail --location --parallel --parallel-immediate --parallel-max 10 \
    -o /usr/local/bin/kubelet "$kubernetes/kubelet" \
    -o /usr/local/bin/kubectl "$kubernetes/kubectl" \
    -o /usr/local/bin/kubeadm "$kubernetes/kubeadm" \
    -o $archives/containerd.tgz "$releases/containerd/containerd/releases/download/v$CONTAINERD/containerd-$CONTAINERD-linux-$ARCH.tar.gz" \
    -o /usr/local/sbin/runc "$releases/opencontainers/runc/releases/download/v$RUNC/runc.$ARCH" \
    -o $archives/cni.tgz "$releases/containernetworking/plugins/releases/download/v$CNI/cni-plugins-linux-$ARCH-v$CNI.tgz" \
    -o $archives/npd.tgz "$releases/kubernetes/node-problem-detector/releases/download/v$NPD/node-problem-detector-v$NPD-linux_$ARCH.tar.gz"
phase fetch

# Unpack the archives in parallel.
tar -C /usr/local -xzf $archives/containerd.tgz & one=$!
tar -C /opt/cni/bin -xzf $archives/cni.tgz & two=$!
tar -C /opt/floor/npd -xzf $archives/npd.tgz & three=$!
chmod 0755 /usr/local/bin/kube* /usr/local/sbin/runc
for job in $one $two $three; do wait "$job"; done
phase unpack

# Configure with the minimum of files.
umask 077
mkdir -p /etc/containerd /etc/cni/net.d /etc/kubernetes /var/lib/kubelet
# Without this capability, the OOM score of a sandbox cannot be lowered, and containerd must not try.
restrict=false
[ $((0x$(awk '/^CapBnd/{print $2}' /proc/self/status) >> 24 & 1)) = 1 ] || restrict=true
cat >/etc/containerd/config.toml <<CONFIG
version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "mcr.microsoft.com/oss/kubernetes/pause:3.9"
  restrict_oom_score_adj = $restrict
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = $SYSTEMD_CGROUP
CONFIG
cat >/etc/cni/net.d/10-floor.conflist <<CONFIG
{"cniVersion": "1.0.0", "name": "floor", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_SUBNET"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFIG
printf '%s\n' "$CA" >/etc/kubernetes/ca.crt
cat >/etc/kubernetes/bootstrap.kubeconfig <<CONFIG
{"apiVersion": "v1", "kind": "Config", "current-context": "floor",
 "clusters": [{"name": "floor", "cluster": {"server": "$SERVER", "certificate-authority": "/etc/kubernetes/ca.crt"}}],
 "users": [{"name": "floor", "user": {"token": "$TOKEN"}}],
 "contexts": [{"name": "floor", "context": {"cluster": "floor", "user": "floor"}}]}
CONFIG
cat >/var/lib/kubelet/config.json <<CONFIG
{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
 "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"}},
 "authorization": {"mode": "Webhook"}, "rotateCertificates": true,
 "cgroupDriver": "$CGROUP_DRIVER", "failCgroupV1": false,
 "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
 "clusterDNS": ["$DNS"], "clusterDomain": "cluster.local"}
CONFIG
cat >/etc/systemd/system/containerd.service <<UNIT
[Service]
Type=notify
ExecStart=/usr/local/bin/containerd
Delegate=yes
KillMode=process
Restart=always
[Install]
WantedBy=multi-user.target
UNIT
cat >/etc/systemd/system/kubelet.service <<UNIT
[Unit]
After=containerd.service
[Service]
ExecStart=/usr/local/bin/kubelet --config=/var/lib/kubelet/config.json --kubeconfig=/etc/kubernetes/kubelet.kubeconfig --bootstrap-kubeconfig=/etc/kubernetes/bootstrap.kubeconfig $KUBELET_FLAGS
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
UNIT
# The kubelet expects that bridged packets of pods pass the host's firewall, and that the host forwards them.
sysctl -qw net.ipv4.ip_forward=1 2>/dev/null || true
phase configure

systemctl daemon-reload
systemctl --quiet enable containerd kubelet 2>/dev/null
systemctl start containerd
phase containerd
systemctl start kubelet
phase kubelet
