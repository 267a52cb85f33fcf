package containerd

import (
	"context"
	"strings"

	"github.com/containerd/containerd"
	runc "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/oci"
)

// specVersion is the version of the OCI runtime specification that containers have. Nothing of a
// later version is used, and crun before version 1.8.2 does not accept a later one.
const specVersion = "1.0.2"

// withVersion sets the version of the specification.
func withVersion(_ context.Context, _ oci.Client, _ *containersContainer, s *oci.Spec) error {
	s.Version = specVersion
	return nil
}

// ociRuntime is the command of the OCI runtime that the daemon's shim runs; "" means runc.
type ociRuntime string

// under returns the option that names the containerd runtime of a container. If it is "", the
// container has the runtime of the client, whose shim runs the command.
func (o ociRuntime) under(runtime string, c *containerd.Client) containerd.NewContainerOpts {
	switch {
	case runtime != "":
		return containerd.WithRuntime(runtime, nil)
	case o == "":
		return containerd.WithRuntime(c.Runtime(), nil)
	}
	return containerd.WithRuntime(c.Runtime(), &runc.Options{BinaryName: string(o)})
}

// missing returns a *MissingRuntime if err means that the containerd runtime did not create a
// container, or that the command is not on the daemon's host, and err otherwise.
func (o ociRuntime) missing(runtime string, err error) error {
	switch {
	case runtime != "":
		return &MissingRuntime{"containerd runtime " + runtime, "session-runner.microvm.runtime", err}
	case o != "" && strings.Contains(err.Error(), "executable file not found"):
		return &MissingRuntime{"OCI runtime " + string(o), "session-runner.oci_runtime", err}
	}
	return err
}

// facts returns the facts that attestations of containers have.
func (o ociRuntime) facts() []string {
	if o == "" {
		return nil
	}
	return []string{"oci_runtime:" + string(o)}
}
