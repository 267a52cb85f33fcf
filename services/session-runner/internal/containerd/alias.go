package containerd

import (
	"runtime"

	"github.com/containerd/containerd/containers"
)

type containersContainer = containers.Container

const goarch = runtime.GOARCH
