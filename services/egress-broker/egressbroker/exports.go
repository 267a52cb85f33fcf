package egressbroker

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

// exporter is the sender in the events about flows of programs that use the socket of exports.
const exporter = "forward"

// exportLimits are the limits of the proxy of exports. A connection may be silent as long as
// it lasts: a target of syslog sends nothing, and events may be rare.
var exportLimits = proxy.Limits{Flows: 16, Idle: time.Hour, Total: time.Hour}

// serveExports serves the socket of exports until ctx ends, if the configuration lists exports. Every
// process that can open the socket may send to these servers.
func (es *endpoints) serveExports(ctx context.Context) error {
	to, ok := es.named[egress.EndpointExports]
	if !ok {
		return nil
	}
	path := filepath.Join(es.s.Exports, es.s.env.Instance+egress.ExportSocket)
	if err := os.MkdirAll(es.s.Exports, 0o711); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier process of this instance
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	p, err := es.proxy(sending{Tenant: contract.CellTenant, Endpoint: egress.EndpointExports, Sender: exporter}, to, exportLimits, func() netrule.Reason { return proxy.Cancelled })
	if err != nil {
		return err
	}
	return p.Serve(ctx, l)
}
