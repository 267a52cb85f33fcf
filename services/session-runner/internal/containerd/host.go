package containerd

import (
	"context"
	"errors"
	"io"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/cio"
	"github.com/containerd/containerd/leases"
	"github.com/containerd/containerd/oci"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// host holds the functions of a Runner that need more of the host than requests to containerd.
// They are other functions if the daemon is simulated.
type host struct {
	streams func(stdin io.Reader, stdout, stderr io.Writer) cio.Creator
	options func(p profile, argv, env []string, uid uint32, way wayOut) containerd.NewContainerOpts
	image   func(ctx context.Context, p *program.Program, from string) (*image, error)
}

// newHost returns the host of a runner on a real daemon. The streams of tasks are FIFOs.
func newHost(r *Runner) host {
	return host{options: options, image: r.image, streams: func(stdin io.Reader, stdout, stderr io.Writer) cio.Creator {
		return cio.NewCreator(cio.WithStreams(stdin, stdout, stderr), cio.WithFIFODir(r.fifoDir))
	}}
}

// options returns the option that sets the specification of a container.
func options(p profile, argv, env []string, uid uint32, way wayOut) containerd.NewContainerOpts {
	return containerd.WithNewSpec(spec(p, argv, env, uid, way)...)
}

// leaseless returns the context for NewContainer, which makes a lease for the time that it
// takes unless ctx has one. The lease would stay for a day if its removal failed. It is not
// needed, since the snapshot of the container is a root of the garbage collector. The lease
// that ctx has then does not exist, so containerd refuses requests in ctx that would store
// something under it.
func leaseless(ctx context.Context) context.Context { return leases.WithLease(ctx, "none") }

// OpenSimulated is Open for a daemon that is simulated in this process. Every image has the
// launcher, and a snapshot whose name is the digest of the program. The specification of a
// container is empty. Nothing of the host is used, so runs have no egress. The caller must not
// use the store. If OpenSimulated fails, it closes client.
func OpenSimulated(ctx context.Context, client *containerd.Client, ns string, warm int, streams func(stdin io.Reader, stdout, stderr io.Writer) cio.Creator) (*Runner, error) {
	r := &Runner{client: client, ns: ns}
	r.host = host{streams: streams,
		options: func(profile, []string, []string, uint32, wayOut) containerd.NewContainerOpts {
			return containerd.WithSpec(&oci.Spec{})
		},
		image: func(_ context.Context, p *program.Program, _ string) (*image, error) {
			return &image{snapshot: p.Digest, launcher: true}, nil
		}}
	if err := begin(ctx, r, warm); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return r, nil
}
