package forward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"

	"github.com/binnacle-mesh/binnacle/pkg/egress"
)

// dial connects to an address by TCP or, if folder is not empty, through one of the egress-brokers
// that have a socket in the folder. The error of a broker that denies the address wraps ErrRefused.
func dial(ctx context.Context, folder, to string) (net.Conn, error) {
	if folder == "" {
		return (&net.Dialer{}).DialContext(ctx, "tcp", to)
	}
	sockets, err := filepath.Glob(filepath.Join(folder, "*"+egress.ExportSocket))
	if err != nil || len(sockets) == 0 {
		return nil, errors.Join(err, fmt.Errorf("no egress-broker has a socket in %s: is egress-broker.exports set?", folder))
	}
	for _, i := range rand.Perm(len(sockets)) { // that of a broker that ended accepts no connection
		c, e := (&net.Dialer{}).DialContext(ctx, "unix", sockets[i])
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		tunnel, refused, e := egress.Connect(ctx, c, to)
		switch {
		case refused == nil && e == nil:
			return tunnel, nil
		case refused == nil:
			err = errors.Join(err, e)
		case egress.Denial(refused) != "":
			return nil, fmt.Errorf("%w: the egress-broker denied the target (%s): add it to %s", ErrRefused, egress.Denial(refused), egress.EndpointSetting(egress.EndpointExports))
		default:
			err = errors.Join(err, fmt.Errorf("the egress-broker returned %s: %.200s", refused.Status, refused.Header.Get("Proxy-Status")))
		}
	}
	return nil, err
}
