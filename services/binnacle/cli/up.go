package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/binnacle-mesh/binnacle/pkg/artifact/s3"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/heap"
	"github.com/binnacle-mesh/binnacle/pkg/logs"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/vaultbroker"
)

// meshOptions holds the flags of a mesh in one process. They override the members of the
// configuration file with the same meaning.
type meshOptions struct {
	file, packs, containerd, llm, capture, nats, webhook, jobs string
	cert, key, natsCert, natsKey                               string
	policies                                                   []string
	power, noop, mirror, noSnapshots                           bool
}

// declare declares the flags of the options.
func (o *meshOptions) declare(cmd *cobra.Command) {
	f := cmd.Flags()
	configFlag(f, &o.file)
	f.StringVar(&o.packs, "packs", "", "`FOLDER` of packs")
	f.StringVar(&o.containerd, "containerd", "", "containerd `SOCKET`, for tier container")
	f.StringVar(&o.llm, "llm", "", "JSON `FILE` that names LLM providers, routes and prices")
	f.StringVar(&o.capture, "capture", "plain", "how much of prompts and answers the ledger keeps: `HOW` is plain, encrypted, hashed or off")
	f.BoolVar(&o.power, "power", false, "lose nothing that was acted on or answered if the power fails, durability mode power (BINNACLE_DURABILITY=power)")
	f.BoolVar(&o.noop, "noop", false, "offer tool.noop, for benchmarks and tests")
	f.StringVar(&o.nats, "nats-listen", "", "also listen for NATS clients on `ADDRESS`, host:port")
	f.StringVar(&o.cert, "tls-cert", "", "the gateway's certificate, a PEM `FILE` that is read again when it changes; empty is plain HTTP")
	f.StringVar(&o.key, "tls-key", "", "its key, a PEM `FILE`")
	natsTLS(cmd, &o.natsCert, &o.natsKey)
	f.BoolVar(&o.mirror, "mirror", false, "keep a mirror of the ledger in an account of its own")
	f.BoolVar(&o.noSnapshots, "no-snapshots", false, "build every view from the ledger's first event, and store no snapshots (BINNACLE_SNAPSHOTS=false)")
	f.StringVar(&o.webhook, "approval-webhook", "", "`URL` that is notified of calls that wait for approval")
	f.StringVar(&o.jobs, "job-webhook", "", "`URL` that is notified of the ends of jobs")
	f.StringArrayVar(&o.policies, "policy", nil, "P1 bundle (.tar.gz) or Rego `FILE`, which replaces the built-in bundle; may be repeated")
	for flag, pointer := range map[string]string{"packs": "/session-runner/packs", "containerd": "/session-runner/containerd", "llm": "/llm-router/document",
		"capture": "/gateway/capture", "noop": "/session-runner/noop", "nats-listen": "/nats/listen", "tls-cert": "/gateway/tls/cert", "tls-key": "/gateway/tls/key",
		"mirror": "/nats/mirror", "approval-webhook": "/gateway/approval_webhook", "job-webhook": "/gateway/job_webhook", "policy": "/policy/bundles"} {
		setting(f, flag, pointer)
	}
	flagWords(cmd, "capture", "plain", "encrypted", "hashed", "off")
	directories(cmd, "packs")
}

// load reads the configuration of a program with these flags and the global flags
// applied.
func (o *meshOptions) load(c *env, program string) (*config.Loaded, error) {
	flags := c.overrides()
	if c.given("addr") {
		flags["/gateway/listen"] = config.Flag{Name: "--addr", Text: c.addr}
	}
	if c.given("power") {
		flags["/durability"] = config.Flag{Name: "--power", Text: map[bool]string{true: "power", false: "process"}[o.power]}
	}
	if c.given("no-snapshots") {
		flags["/snapshots"] = config.Flag{Name: "--no-snapshots", Text: strconv.FormatBool(!o.noSnapshots)}
	}
	if c.given("verbose") {
		flags["/log/level"] = config.Flag{Name: "--verbose", Text: "debug"}
	}
	return c.load(program, o.file, flags)
}

// config returns the configuration of a mesh in this process.
func (o *meshOptions) config(c *env) (mesh.Config, error) {
	l, err := o.load(c, config.Up)
	if err != nil {
		return mesh.Config{}, err
	}
	return meshConfig(&l.Config)
}

// artifactStores sets the stores of artifacts, if a configuration names an S3 endpoint.
func artifactStores(cfg *mesh.Config, x *config.S3) (err error) {
	if cfg.Artifacts, err = s3.FromConfig(x, false); err == nil && x.Collector.Given() {
		cfg.Collector, err = s3.FromConfig(x, true)
	}
	return err
}

// meshConfig returns the configuration of a mesh in this process from the loaded
// configuration. It reads the vault's key and the llm document. The durability mode
// replicated is an error, because one process has one NATS server.
func meshConfig(x *config.Config) (mesh.Config, error) {
	cfg := mesh.Config{Dir: x.Data, Tenant: x.Tenant, Addr: x.Gateway.Listen, TLSCert: x.Gateway.TLS.Cert, TLSKey: x.Gateway.TLS.Key, ClientCA: x.Gateway.TLS.ClientCA, ClientCerts: x.Gateway.TLS.ClientCertificates, ACME: x.Gateway.ACME, NATSCert: x.NATS.TLS.Cert, NATSKey: x.NATS.TLS.Key,
		Packs: x.SessionRunner.Packs, Scripts: x.SessionRunner.Scripts, Containerd: sessionrunner.Socket(x.SessionRunner.Containerd), Images: x.SessionRunner.Images, Warm: x.SessionRunner.Warm, EgressHosts: x.EgressBroker.Hosts, EgressNetworks: x.EgressBroker.Networks, Exports: x.EgressBroker.Exports, Sandboxes: sessionrunner.HeldConfig(x.SessionRunner.Sandboxes), ArtifactQuota: int64(x.Work.ArtifactQuota), MaxArtifacts: int64(x.NATS.MaxArtifacts), Policies: x.Policy.Bundles, BundleServers: x.Policy.BundleServers, Power: x.Durability == "power", Noop: x.SessionRunner.Noop,
		NATSListen: x.NATS.Listen, MaxStore: int64(x.NATS.MaxStore), Mirror: x.NATS.Mirror, NoSnapshots: !x.Snapshots, Webhook: x.Gateway.ApprovalWebhook, JobWebhook: x.Gateway.JobWebhook, PublicURL: x.Gateway.PublicURL, Origins: x.Gateway.Origins, AddressRate: x.Gateway.AddressRate, OIDC: x.Gateway.OIDC, OAuth: x.Gateway.OAuth, ApprovalPage: x.Gateway.ApprovalPage, Capture: x.Gateway.Capture, TracesTo: x.Tracing.Endpoint}
	if x.Durability == "replicated" {
		return cfg, fail(exitUsage, "/durability: one process has one NATS server, so its ledger is not replicated: use power or process")
	}
	runner := &x.SessionRunner
	if len(runner.PackKeys) > 0 {
		keys, err := sessionrunner.ParsePackKeys(runner.PackKeys)
		if err != nil {
			return cfg, err
		}
		cfg.PackKeys = keys
	}
	cfg.Runs, cfg.Queue, cfg.Classes, cfg.MicroVM, cfg.OCIRuntime, cfg.Registries, cfg.RegistryHosts, cfg.RegistrySecrets, cfg.RegistryCA = runner.Runs, runner.Queue, runner.Classes, runner.MicroVM.Runtime, runner.OCIRuntime, runner.Registries, runner.RegistryHosts, runner.RegistrySecrets, runner.RegistryCA
	if err := artifactStores(&cfg, &x.Artifacts.S3); err != nil {
		return cfg, err
	}
	if kek := x.VaultBroker.KEK; kek.Given() {
		text, err := kek.Read()
		if err != nil {
			return cfg, err
		}
		if cfg.VaultKEK, err = run.ParseSeed(kek.Where(), text); err != nil {
			return cfg, err
		}
	}
	vault, err := vaultbroker.ConfigOf(&x.VaultBroker, "")
	if err != nil {
		return cfg, fail(exitUsage, "%v", err)
	}
	cfg.Vault, cfg.Transit, cfg.TokenCA, cfg.TokenEndpoints = vault.Vault, vault.Transit, vault.TokenCA, x.VaultBroker.TokenEndpoints
	cfg.ClientDocument = vault.ClientDocument
	if !x.LLMRouter.Document.Given() {
		return cfg, nil
	}
	cfg.LLM, err = readLLM(x.LLMRouter.Document)
	return cfg, err
}

// declareListen declares the flag --listen.
func declareListen(f *pflag.FlagSet, listen *string) {
	f.StringVar(listen, "listen", "", "`ADDRESS` to listen on, the same as --addr")
	setting(f, "listen", "/gateway/listen")
}

// declareLevel declares the flag --log-level.
func declareLevel(cmd *cobra.Command, level *string) {
	cmd.Flags().StringVar(level, "log-level", "info", "`LEVEL` of the log: debug, info, warn or error; SIGUSR1 and SIGUSR2 change it by a step while the mesh runs")
	setting(cmd.Flags(), "log-level", "/log/level")
	flagWords(cmd, "log-level", "debug", "info", "warn", "error")
}

// natsTLS declares the flags of the NATS server's certificate for clients.
func natsTLS(cmd *cobra.Command, cert, key *string) {
	f := cmd.Flags()
	f.StringVar(cert, "nats-tls-cert", "", "certificate of the NATS listener, a PEM `FILE` as the server sees it; empty is plain TCP")
	f.StringVar(key, "nats-tls-key", "", "its key, a PEM `FILE` as the server sees it")
	setting(f, "nats-tls-cert", "/nats/tls/cert")
	setting(f, "nats-tls-key", "/nats/tls/key")
}

type upOptions struct {
	listen, logLevel string
	verbose          bool
	mesh             meshOptions
}

// newUpCmd returns the command up, which runs a whole mesh in this process.
func newUpCmd(c *env) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the whole mesh in one process",
		Long: `Run the whole mesh in one process, in the foreground. State is in DATA; keys and the
tokens of the administrator and the operator are made at the first start. --addr is the address to listen on.
The log, on standard error, has a line for each request.`,
		Example: `  binnacle up
  binnacle up --addr 127.0.0.1:8080 --data data --packs packs --llm llm.json
  binnacle up --config binnacle.yaml
  binnacle up --power --mirror --nats-listen 127.0.0.1:4222`,
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runUp(cmd.Context(), c, &o) },
	}
	declareListen(cmd.Flags(), &o.listen)
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "log debug messages, the same as --log-level debug")
	declareLevel(cmd, &o.logLevel)
	o.mesh.declare(cmd)
	return cmd
}

// runUp runs a mesh in this process until ctx is done or the mesh fails. It reloads the
// configuration on SIGHUP and when the file changes.
func runUp(ctx context.Context, c *env, o *upOptions) error {
	loaded, err := o.mesh.load(c, config.Up)
	if err != nil {
		return err
	}
	level, err := logs.Parse(loaded.Config.Log.Level)
	if err != nil {
		return err
	}
	c.data = loaded.Config.Data
	garbage := heap.Garbage{Bytes: 160 << 20, Percent: 40}
	go heap.Adapt(ctx, garbage, garbage)
	process, err := run.StartProcess(ctx, loaded, func() (*config.Loaded, error) { return o.mesh.load(c, config.Up) }, logs.Start(ctx, os.Stderr, logs.Text, level))
	if err != nil {
		return err
	}
	cfg, err := meshConfig(&loaded.Config)
	cfg.Process = process
	if err != nil {
		return err
	}
	began := time.Now()
	m, err := mesh.Start(ctx, cfg)
	if err != nil {
		return err
	}
	process.Ready.Store(true)
	started := time.Since(began).Milliseconds()
	_ = c.print(map[string]any{"addr": m.Addr, "admin": process.Admin, "data": c.data, "root": m.RootKID, "start_ms": started}, func() {
		fmt.Fprintf(c.out, "binnacle %s is up in %d ms\n  api       %s\n  token     %s\n  operator  %s\n  root      %s\n  admin     %s\nCtrl-C stops it in order.\n",
			mesh.Version, started, m.URL(), filepath.Join(c.data, mesh.AdminTokenFile), filepath.Join(c.data, mesh.OperatorTokenFile), m.RootKID, process.Admin)
	})
	return m.Err()
}
