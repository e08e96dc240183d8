# Cases of rootless dockerd and of BuildKit. ROOTLESSKIT is the directory of the programs of one version of rootlesskit.
PATH=$ROOTLESSKIT:$PATH

# Starts dockerd behind PORT_DRIVER.
start_docker() {
    export DOCKERD_ROOTLESS_ROOTLESSKIT_NET=slirp4netns DOCKERD_ROOTLESS_ROOTLESSKIT_PORT_DRIVER=$1
    export DOCKER_HOST=unix://$XDG_RUNTIME_DIR/docker.sock
    dockerd-rootless.sh --storage-driver=vfs 3>&- &
    DAEMON=$!
    check start within 40 docker info
    image /tmp/image.tar "" curl socat
    check import docker import /tmp/image.tar test
}

docker_builtin() {
    start_docker builtin
    containers
}

docker_slirp4netns() {
    start_docker slirp4netns
    containers
}

containers() {
    local name
    check tcp prints neighbour run curl -sSm 5 http://192.0.2.2/
    check name prints neighbour run curl -sSm 5 http://example.com/
    check bulk-down prints "$(get http://192.0.2.2/big.sum)" run sh -c 'curl -sSm 20 http://192.0.2.2/big | sha256sum'
    refused host-loopback run curl -sSm 3 http://10.0.2.2:8000/
    check serve docker run --detach --name web --publish 8080:80 --publish 8080:80/udp test \
        sh -c 'echo guest >/tmp/index.html; socat -T 2 UDP4-RECVFROM:80,fork EXEC:cat & exec httpd -f -p 80 -h /tmp'
    check tcp-loopback within 5 get http://127.0.0.1:8080/
    check tcp-address prints guest get http://192.0.2.1:8080/
    check tcp-neighbour prints guest get http://192.0.2.2:7003/
    check udp-neighbour prints ping datagram UDP4:192.0.2.2:7004
    check network docker network create inner
    check connect docker network connect inner web
    check name-of-container prints guest docker run --rm --network inner test curl -sSm 5 http://web/
    check remove docker rm --force web
    refused removed get http://127.0.0.1:8080/
    mkdir -p /tmp/build
    printf 'FROM test\nRUN curl -sSm 5 -o /tmp/page http://example.com/\nCMD cat /tmp/page\n' >/tmp/build/Dockerfile
    check build env DOCKER_BUILDKIT=0 docker build --quiet --tag built /tmp/build
    check built prints neighbour docker run --rm built
    kill -TERM "$DAEMON"
    check end within 20 gone "$DAEMON"
    wait "$DAEMON" 2>/dev/null
    rm -rf "$XDG_RUNTIME_DIR"/*
}

run() {
    timeout 30 docker run --rm test "$@"
}

# Builds an image whose build steps use the network.
buildkit() {
    rootlesskit --net=slirp4netns --copy-up=/etc --disable-host-loopback \
        buildkitd --addr="unix://$XDG_RUNTIME_DIR/buildkitd.sock" --root=/tmp/buildkit --oci-worker-no-process-sandbox \
        --oci-worker-net=host --oci-worker-snapshotter=native 3>&- &
    local daemon=$! client=(timeout 60 buildctl --addr="unix://$XDG_RUNTIME_DIR/buildkitd.sock")
    check start within 30 "${client[@]}" debug workers
    mkdir -p /tmp/build
    image /tmp/build/image.tar "" curl socat
    printf '%s\n' 'FROM scratch' 'ADD image.tar /' 'RUN curl -sSm 5 -o /page http://example.com/' \
        'RUN curl -sSm 20 http://192.0.2.2/big | sha256sum >/sum' 'RUN ! curl -sSm 3 http://10.0.2.2:8000/' \
        >/tmp/build/Dockerfile
    check build "${client[@]}" build --frontend=dockerfile.v0 --local context=/tmp/build --local dockerfile=/tmp/build \
        --output type=tar,dest=/tmp/out.tar
    check page prints neighbour tar -xOf /tmp/out.tar page
    check bulk-down prints "$(get http://192.0.2.2/big.sum)" tar -xOf /tmp/out.tar sum
    kill -TERM "$daemon"
    check end within 20 gone "$daemon"
    wait "$daemon" 2>/dev/null
    rm -rf "$XDG_RUNTIME_DIR"/*
}
