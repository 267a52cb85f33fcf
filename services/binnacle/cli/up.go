package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/logs"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
)

// meshOptions configure a mesh of one process.
type meshOptions struct {
	packs, containerd, llm, capture, nats, webhook string
	cert, key, natsCert, natsKey                   string
	policies                                       []string
	power, noop, mirror                            bool
}

// declare declares the flags of the options.
func (o *meshOptions) declare(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.packs, "packs", "", "`FOLDER` of packs")
	f.StringVar(&o.containerd, "containerd", "", "containerd `SOCKET`, for tier container")
	f.StringVar(&o.llm, "llm", "", "JSON `FILE` that names LLM providers, routes and prices")
	f.StringVar(&o.capture, "capture", "plain", "how much of prompts and answers the ledger keeps: `HOW` is plain, encrypted, hashed or off")
	f.BoolVar(&o.power, "power", false, "fsync every event, durability mode power (BINNACLE_DURABILITY=power)")
	f.BoolVar(&o.noop, "noop", false, "offer tool.noop, for benchmarks and tests")
	f.StringVar(&o.nats, "nats-listen", "", "also listen for NATS clients on `ADDRESS`, host:port")
	f.StringVar(&o.cert, "tls-cert", "", "the gateway's certificate, a PEM `FILE` that is read again when it changes; empty is plain HTTP")
	f.StringVar(&o.key, "tls-key", "", "its key, a PEM `FILE`")
	natsTLS(cmd, &o.natsCert, &o.natsKey)
	f.BoolVar(&o.mirror, "mirror", false, "keep a mirror of the ledger in an account of its own (BINNACLE_MIRROR)")
	f.StringVar(&o.webhook, "approval-webhook", "", "`URL` that is notified of calls that wait for approval")
	f.StringArrayVar(&o.policies, "policy", nil, "P1 bundle (.tar.gz) or Rego `FILE`, which replaces the built-in bundle; may be repeated")
	variable(f, "packs", "BINNACLE_PACKS")
	variable(f, "containerd", "BINNACLE_CONTAINERD")
	variable(f, "llm", "BINNACLE_LLM")
	variable(f, "capture", "BINNACLE_CAPTURE")
	variable(f, "tls-cert", "BINNACLE_TLS_CERT")
	variable(f, "tls-key", "BINNACLE_TLS_KEY")
	variable(f, "approval-webhook", "BINNACLE_APPROVAL_WEBHOOK")
	flagWords(cmd, "capture", "plain", "encrypted", "hashed", "off")
	directories(cmd, "packs")
}

// config is the configuration of a mesh that the options, BINNACLE_* variables and
// the flags of every command make.
func (o *meshOptions) config(c *env) (mesh.Config, error) {
	cfg := mesh.Config{Dir: c.data, Addr: listenAddr(c), TLSCert: o.cert, TLSKey: o.key, NATSCert: o.natsCert, NATSKey: o.natsKey, Packs: o.packs, Containerd: o.containerd,
		Policies: o.policies, Power: powerMode(c, o.power), Noop: o.noop, NATSListen: o.nats, Mirror: mirrorMode(c, o.mirror), Webhook: o.webhook, Capture: o.capture}
	if v := os.Getenv("BINNACLE_VAULT_KEK"); v != "" {
		kek, err := run.ParseSeed("BINNACLE_VAULT_KEK", v)
		if err != nil {
			return cfg, err
		}
		cfg.VaultKEK = kek
	}
	if o.llm == "" {
		return cfg, nil
	}
	b, err := os.ReadFile(o.llm)
	if err != nil {
		return cfg, err
	}
	if cfg.LLM, err = llmrouter.ReadConfig(b); err != nil {
		err = fmt.Errorf("%s: %w", o.llm, err)
	}
	return cfg, err
}

// listenAddr is the address that a mesh of this process listens on.
func listenAddr(c *env) string {
	if c.addr != "" {
		return c.addr
	}
	return envOr("BINNACLE_ADDR", defaultAddr)
}

// powerMode reports whether a mesh runs in durability mode power: by its flag or, where
// that was not given, by BINNACLE_DURABILITY.
func powerMode(c *env, flag bool) bool {
	return flag || !c.given("power") && os.Getenv("BINNACLE_DURABILITY") == "power"
}

// mirrorMode reports whether a mesh keeps a mirror: by its flag or, where that was
// not given, by BINNACLE_MIRROR.
func mirrorMode(c *env, flag bool) bool {
	return flag || !c.given("mirror") && os.Getenv("BINNACLE_MIRROR") != ""
}

// natsTLS declares the flags of the NATS server's certificate for clients.
func natsTLS(cmd *cobra.Command, cert, key *string) {
	f := cmd.Flags()
	f.StringVar(cert, "nats-tls-cert", "", "certificate of the NATS listener, a PEM `FILE` as the server sees it; empty is plain TCP")
	f.StringVar(key, "nats-tls-key", "", "its key, a PEM `FILE` as the server sees it")
	variable(f, "nats-tls-cert", "BINNACLE_NATS_TLS_CERT")
	variable(f, "nats-tls-key", "BINNACLE_NATS_TLS_KEY")
}

type upOptions struct {
	listen, logLevel string
	verbose          bool
	mesh             meshOptions
}

// newUpCmd runs the whole mesh.
func newUpCmd(c *env) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the whole mesh in one process",
		Long: `Run the whole mesh in one process, in the foreground. State is in DATA; keys and the
administrator's token are made at the first start. --addr is the address to listen on.
The log, on standard error, has a line for each request.`,
		Example: `  binnacle up
  binnacle up --addr 127.0.0.1:8080 --data data --packs packs --llm llm.json
  binnacle up --power --mirror --nats-listen 127.0.0.1:4222`,
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runUp(cmd.Context(), c, &o) },
	}
	cmd.Flags().StringVar(&o.listen, "listen", "", "`ADDRESS` to listen on, the same as --addr")
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "log debug messages, the same as --log-level debug")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "info", "`LEVEL` of the log: debug, info, warn or error; SIGUSR1 and SIGUSR2 change it by a step while the mesh runs")
	variable(cmd.Flags(), "log-level", "BINNACLE_LOG")
	flagWords(cmd, "log-level", "debug", "info", "warn", "error")
	o.mesh.declare(cmd)
	return cmd
}

func runUp(ctx context.Context, c *env, o *upOptions) error {
	if o.listen != "" {
		c.addr = o.listen
	}
	level, err := logs.Parse(o.logLevel)
	if err != nil {
		return fail(exitUsage, "--log-level: %v", err)
	}
	if o.verbose {
		level = slog.LevelDebug
	}
	go collect(ctx)
	logs.Start(ctx, os.Stderr, logs.Text, level)
	cfg, err := o.mesh.config(c)
	if err != nil {
		return err
	}
	began := time.Now()
	m, err := mesh.Start(ctx, cfg)
	if err != nil {
		return err
	}
	started := time.Since(began).Milliseconds()
	_ = c.print(map[string]any{"addr": m.Addr, "data": c.data, "root": m.RootKID, "start_ms": started}, func() {
		fmt.Fprintf(c.out, "binnacle %s is up in %d ms\n  api    %s\n  token  %s\n  root   %s\nCtrl-C stops it in order.\n",
			mesh.Version, started, m.URL(), filepath.Join(c.data, "admin.token"), m.RootKID)
	})
	return m.Err()
}

// collect keeps garbage collection rare while the heap is small, and memory in
// bounds while it is not: what may pile up is some 160 MiB, and less where that
// would take the process above 480 MiB.
func collect(ctx context.Context) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for {
		metrics.Read(live)
		n := max(int64(live[0].Value.Uint64()), 1<<20)
		debug.SetGCPercent(int(min(max(100*(160<<20)/n, 40), 300)))
		debug.SetMemoryLimit(max(480<<20, n*3/2+128<<20))
		select {
		case <-ctx.Done():
			return
		case <-time.After(2 * time.Second):
		}
	}
}
