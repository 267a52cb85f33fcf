package containerd

import (
	"context"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/pkg/dialer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	dialTime    = 5 * time.Second        // longest time for the first connection
	redialEvery = 500 * time.Millisecond // longest time between two attempts to connect again
)

// connectTime is the longest time for which a request waits for a daemon that restarts.
const connectTime = 5 * time.Second

// dial connects to a daemon. A request that begins while the daemon restarts waits until it is
// connected again, for at most connectTime.
func dial(socket string) (*containerd.Client, error) {
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: dialTime}
	params.Backoff.BaseDelay, params.Backoff.MaxDelay = 50*time.Millisecond, redialEvery
	return containerd.New(socket, containerd.WithTimeout(dialTime), containerd.WithDialOpts([]grpc.DialOption{
		grpc.WithBlock(), grpc.FailOnNonTempDialError(true), grpc.WithReturnConnectionError(), //nolint:staticcheck // as containerd.New does, so that a daemon that is not there is an error
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(params), grpc.WithContextDialer(dialer.ContextDialer),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			connected(ctx, conn)
			return invoke(ctx, method, req, reply, conn, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			connected(ctx, conn)
			return open(ctx, desc, conn, method, opts...)
		}),
	}))
}

// connected waits until a connection can carry requests, was closed, or ctx is done, but
// at most connectTime.
func connected(ctx context.Context, conn *grpc.ClientConn) {
	state := conn.GetState()
	if state == connectivity.Ready {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	for ; state != connectivity.Ready && state != connectivity.Shutdown; state = conn.GetState() {
		conn.Connect()
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}
