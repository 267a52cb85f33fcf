package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/healthcheck"
	"github.com/binnacle-mesh/binnacle/pkg/logs"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

type provisionOptions struct {
	file, nats, keys        string
	replicas                int
	mirror                  bool
	printConfig, power      bool
	store, listen, monitor  string
	natsCert, natsKey       string
	clusterServer, routesAt string
	peers                   []string
}

// newProvisionCmd returns the command provision, which creates the streams and consumers
// on an external NATS server and publishes the mesh's keys.
func newProvisionCmd(c *env) *cobra.Command {
	var o provisionOptions
	cmd := &cobra.Command{
		Use:   "provision",
		Short: "Keep an external NATS server as the mesh needs it",
		Long: `Create the streams and consumers of a mesh on an external NATS server, publish its keys,
and keep all of that as declared until stopped. With --print-config, print the
configuration that the server needs, with the accounts and permissions of every
service.`,
		Example: `  binnacle provision --nats nats://127.0.0.1:4222
  binnacle provision --print-config --store /data > nats.conf
  binnacle provision health`,
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runProvision(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	configFlag(f, &o.file)
	f.BoolVar(&o.printConfig, "print-config", false, "print the NATS server's configuration and exit")
	f.StringVar(&o.nats, "nats", "nats://127.0.0.1:4222", "NATS server, a `URL`")
	f.StringVar(&o.store, "store", natsStore, "store `FOLDER` in the printed configuration")
	f.StringVar(&o.listen, "nats-listen", natsListen, "listen `ADDRESS` in the printed configuration")
	f.StringVar(&o.monitor, "monitor", natsMonitor, "monitoring `ADDRESS` in the printed configuration; empty for none")
	natsTLS(cmd, &o.natsCert, &o.natsKey)
	f.BoolVar(&o.power, "power", false, "durability mode power, in the printed configuration")
	f.IntVar(&o.replicas, "replicas", 1, "stream replicas")
	f.BoolVar(&o.mirror, "mirror", false, "keep a mirror of the ledger in an account of its own")
	f.StringVar(&o.keys, "keys", "", "`FOLDER` of keys (default DATA/keys)")
	f.StringVar(&o.clusterServer, "cluster-server", "", "`NAME` of this server in a cluster, in the printed configuration; empty for a server on its own")
	f.StringVar(&o.routesAt, "cluster-listen", "0.0.0.0:6222", "`ADDRESS` for the other servers, in the printed configuration")
	f.StringArrayVar(&o.peers, "cluster-route", nil, "`ADDRESS` (host:port) of a server of the cluster; name all of them")
	setting(f, "nats", "/nats/url")
	setting(f, "mirror", "/nats/mirror")
	setting(f, "replicas", "/nats/replicas")
	directories(cmd, "keys")
	cmd.AddCommand(&cobra.Command{
		Use:               "health",
		Short:             "Check whether the provisioner on this host has the server as declared",
		Example:           "  binnacle provision health",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			if healthcheck.Check("provision") != 0 {
				return errors.New("no provisioner on this host, or the server is not as declared")
			}
			return nil
		},
	})
	return cmd
}

// runProvision provisions the NATS server and publishes the keys of the ring until ctx is
// done; see mesh.Provisioner. With --print-config it prints the server's configuration
// instead, and adds to the ring the keys that the configuration needs and the ring lacks; see
// printServerConfig.
func runProvision(ctx context.Context, c *env, o *provisionOptions) error {
	if o.file == "" {
		o.file = run.ConfigFile()
	}
	loaded, err := c.load(config.Provision, o.file, nil)
	if err != nil {
		return err
	}
	x := &loaded.Config
	if o.keys == "" {
		o.keys = filepath.Join(x.Data, "keys")
	}
	ring, err := keyring.Open(o.keys)
	if err != nil {
		return err
	}
	if o.printConfig {
		o.natsCert, o.natsKey = x.NATS.TLS.Cert, x.NATS.TLS.Key
		return printServerConfig(c, ring, o)
	}
	level, err := logs.Parse(x.Log.Level)
	if err != nil {
		return err
	}
	process, err := run.StartProcess(ctx, loaded, nil, logs.Start(ctx, c.errOut, logs.JSON, level))
	if err != nil {
		return err
	}
	p := mesh.Provisioner{Dialer: bus.Dialer{URL: x.NATS.URL, CA: cmp.Or(x.NATS.CA, run.NATSCA(o.keys))}, Ring: ring, Replicas: x.NATS.Replicas, Mirror: x.NATS.Mirror, MaxArtifacts: int64(x.NATS.MaxArtifacts), Starting: run.NewStarting()}
	go run.AnswerHealth("provision", p.Provisioned, p.Starting)
	return p.Run(ctx, func() {
		process.Ready.Store(true)
		_ = c.print(map[string]bool{"provisioned": true}, func() { fmt.Fprintln(c.out, "provisioned") })
	})
}

// printServerConfig prints the configuration of an external NATS server. It adds the NATS
// identities of the mirrors and, for a cluster, the cluster's secret to the ring, if the ring lacks
// them.
func printServerConfig(c *env, ring *keyring.Ring, o *provisionOptions) error {
	s := bus.ServerOptions{StoreDir: o.store, Listen: o.listen, HTTP: o.monitor, SyncAlways: o.power, TLSCert: o.natsCert, TLSKey: o.natsKey}
	if o.clusterServer != "" {
		secret, err := ring.ClusterSecret()
		if err != nil {
			return err
		}
		s.Cluster = &bus.Cluster{Server: o.clusterServer, Listen: o.routesAt, Routes: o.peers, Secret: secret}
	}
	conf, err := mesh.ServerConfig(ring, s)
	if err != nil {
		return err
	}
	return c.print(map[string]string{"config": conf}, func() { fmt.Fprint(c.out, conf) })
}
