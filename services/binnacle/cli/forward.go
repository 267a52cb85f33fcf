package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/forward"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

type forwardOptions struct {
	to, cursor  string
	follow, all bool
	target      forward.Options
}

// newForwardCmd returns the command forward, which delivers events as OCSF documents.
func newForwardCmd(c *env) *cobra.Command {
	var o forwardOptions
	cmd := &cobra.Command{
		Use:   "forward --to TARGET --cursor FILE",
		Short: "Deliver events to a security team's system, as OCSF",
		Long: `Deliver the events of the ledger to TARGET, as events of OCSF's class API Activity:
https://HOST/PATH, relp+tls://HOST:PORT, relp+tcp://HOST:PORT, syslog+tls://HOST:PORT,
syslog+tcp://HOST:PORT, or file:PATH. Syslog receivers confirm events over RELP only.
The position is stored in a file after each delivery, so that every event is
delivered at least once, with the same id each time. Without --follow, the command
ends at the end of the ledger. It needs a token with the scope audit:read.`,
		Example: "  binnacle forward --to file:events.jsonl --cursor events.cursor\n" +
			"  binnacle forward --to relp+tls://siem.example.com:20514 --ca ca.pem --cursor siem.cursor --follow",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runForward(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.to, "to", "", "`TARGET` that receives the events")
	f.StringVar(&o.cursor, "cursor", "", "`FILE` with the position, one for each target")
	f.BoolVar(&o.follow, "follow", false, "continue at the end of the ledger, and repeat what fails")
	f.BoolVar(&o.all, "all", false, "deliver also the events before the outcome of a call")
	f.StringVar(&o.target.CA, "ca", "", "`FILE` with the certificates of authorities to trust instead of the system's")
	f.StringVar(&o.target.Cert, "cert", "", "`FILE` with the client's certificate")
	f.StringVar(&o.target.Key, "key", "", "`FILE` with the key of the client's certificate")
	f.StringVar(&o.target.Egress, "egress", "", "`FOLDER` of the sockets of egress-brokers, to reach the target through one of them (egress-broker.exports)")
	f.StringVar(&o.target.Authorization, "authorization", "", "`FILE` with the value of the header Authorization for https")
	directories(cmd, "egress")
	return cmd
}

// runForward delivers events until ctx is done or, without --follow, to the end of the ledger.
func runForward(ctx context.Context, c *env, o *forwardOptions) (err error) {
	if o.to == "" || o.cursor == "" {
		return fail(exitUsage, "forward requires --to TARGET and --cursor FILE")
	}
	o.target.Host, _ = os.Hostname()
	to, err := forward.New(o.to, &o.target)
	if err != nil {
		return fail(exitUsage, "--to: %v", err)
	}
	defer to.Close()
	cursor, err := forward.Open(o.cursor)
	if err != nil {
		return err
	}
	defer cursor.Close()
	read := func(ctx context.Context, from uint64, follow bool) (io.ReadCloser, error) {
		q := url.Values{"from": {strconv.FormatUint(from, 10)}, "follow": {strconv.FormatBool(follow)}}
		resp, err := c.request(ctx, http.MethodGet, "/api/v1/events?"+q.Encode(), nil, nil)
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}
	f := &forward.Forwarder{Read: read, Target: to, Cursor: cursor, Follow: o.follow, All: o.all, Version: mesh.Version, Log: slog.New(slog.NewTextHandler(c.errOut, nil)), Pause: time.Second}
	if err := f.Run(ctx); err != nil {
		return err
	}
	return c.print(map[string]any{"delivered": f.Delivered, "rejected": f.Rejected, "seq": cursor.Seq}, func() {
		fmt.Fprintf(c.out, "delivered %d events, to sequence %d\n", f.Delivered, cursor.Seq)
	})
}
