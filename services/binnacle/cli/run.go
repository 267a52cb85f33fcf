package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
)

// meshFlags declares the flags of a mesh of one process; the function returns
// its configuration once they are parsed.
func meshFlags(c *env) func() (mesh.Config, error) {
	packs := c.fs.String("packs", envOr("BINNACLE_PACKS", ""), "folder of packs")
	containerd := c.fs.String("containerd", os.Getenv("BINNACLE_CONTAINERD"), "containerd socket, for tier container")
	llm := c.fs.String("llm", os.Getenv("BINNACLE_LLM"), "JSON file naming LLM providers, routes and prices")
	capture := c.fs.String("capture", envOr("BINNACLE_CAPTURE", "plain"), "how much of prompts and answers the ledger keeps: plain, encrypted, hashed or off")
	power := c.fs.Bool("power", os.Getenv("BINNACLE_DURABILITY") == "power", "fsync every event (durability mode power)")
	noop := c.fs.Bool("noop", false, "offer tool.noop, for benchmarks and tests")
	nats := c.fs.String("nats-listen", "", "also listen for NATS clients on host:port")
	cert := c.fs.String("tls-cert", os.Getenv("BINNACLE_TLS_CERT"), "the gateway's certificate, a PEM file that is read again when it changes; empty = plain HTTP")
	key := c.fs.String("tls-key", os.Getenv("BINNACLE_TLS_KEY"), "its key, a PEM file")
	natsCert, natsKey := natsTLS(c.fs)
	mirror := c.fs.Bool("mirror", os.Getenv("BINNACLE_MIRROR") != "", "keep a mirror of the ledger in an account of its own")
	webhook := c.fs.String("approval-webhook", "", "URL that is notified of calls that wait for approval (default: BINNACLE_APPROVAL_WEBHOOK)")
	var policies list
	c.fs.Var(&policies, "policy", "P1 bundle (.tar.gz), or Rego file, which replaces the built-in bundle; may be repeated")
	return func() (mesh.Config, error) {
		if *webhook == "" { // not the flag's default: it may hold a secret, and help shows defaults
			*webhook = os.Getenv("BINNACLE_APPROVAL_WEBHOOK")
		}
		cfg := mesh.Config{Dir: *c.data, Addr: *c.addr, TLSCert: *cert, TLSKey: *key, NATSCert: *natsCert, NATSKey: *natsKey, Packs: *packs, Containerd: *containerd, Policies: policies, Power: *power, Noop: *noop, NATSListen: *nats, Mirror: *mirror, Webhook: *webhook, Capture: *capture}
		if v := os.Getenv("BINNACLE_VAULT_KEK"); v != "" {
			kek, err := run.ParseSeed("BINNACLE_VAULT_KEK", v)
			if err != nil {
				return cfg, err
			}
			cfg.VaultKEK = kek
		}
		if *llm == "" {
			return cfg, nil
		}
		b, err := os.ReadFile(*llm)
		if err != nil {
			return cfg, err
		}
		if cfg.LLM, err = ReadLLM(b); err != nil {
			err = fmt.Errorf("%s: %w", *llm, err)
		}
		return cfg, err
	}
}

// natsTLS declares the flags of the NATS server's certificate for clients.
func natsTLS(fs *flag.FlagSet) (cert, key *string) {
	return fs.String("nats-tls-cert", os.Getenv("BINNACLE_NATS_TLS_CERT"), "certificate of the NATS listener, a PEM file as the server sees it; empty = plain TCP"),
		fs.String("nats-tls-key", os.Getenv("BINNACLE_NATS_TLS_KEY"), "its key, a PEM file as the server sees it")
}

// up runs the whole mesh in the foreground.
func up(ctx context.Context, c *env) error {
	listen := c.fs.String("listen", "", "same as --addr")
	verbose := c.fs.Bool("v", false, "log debug messages")
	config := meshFlags(c)
	if _, err := c.parse(0, 0, "[flags]"); err != nil {
		return err
	}
	if *listen != "" {
		*c.addr = *listen
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	go collect(ctx)
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	cfg, err := config()
	if err != nil {
		return err
	}
	began := time.Now()
	m, err := mesh.Start(ctx, cfg)
	if err != nil {
		return err
	}
	if *c.json {
		_ = json.NewEncoder(c.out).Encode(map[string]any{"addr": m.Addr, "data": *c.data, "root": m.RootKID, "start_ms": time.Since(began).Milliseconds()})
	} else {
		fmt.Fprintf(c.out, "binnacle %s is up in %d ms\n  api    %s\n  token  %s\n  root   %s\nCtrl-C stops it in order.\n",
			mesh.Version, time.Since(began).Milliseconds(), m.URL(), filepath.Join(*c.data, "admin.token"), m.RootKID)
	}
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

// ReadLLM reads the llm document strictly.
func ReadLLM(b []byte) (cfg llmrouter.Config, err error) {
	err = strictJSON(b, &cfg)
	return cfg, err
}

// initKeys makes the keys of a mesh, and prints nothing secret.
func initKeys(_ context.Context, c *env) error {
	to := distributeFlag(c.fs)
	if _, err := c.parse(0, 0, "[flags]"); err != nil {
		return err
	}
	return makeKeys(c, *to)
}

func makeKeys(c *env, to string) error {
	ring, err := mesh.Init(*c.data, "default")
	if err != nil {
		return err
	}
	if _, err := mesh.AdminToken(*c.data, ring, "default"); err != nil {
		return err
	}
	if err := distribute(ring, to); err != nil {
		return err
	}
	return c.print(map[string]string{"data": *c.data, "root": ring.RootKID}, func() {
		fmt.Fprintf(c.out, "keys are in %s\nroot %s\n", filepath.Join(*c.data, "keys"), ring.RootKID)
	})
}

func distributeFlag(fs *flag.FlagSet) *string {
	return fs.String("distribute", os.Getenv("BINNACLE_DISTRIBUTE"), "folder with one folder per service, and nats: each receives its own keys, or the server's configuration")
}

// distribute copies every service's keys, and the NATS server's configuration,
// to the folders that hold one service's each.
func distribute(ring *keyring.Ring, to string) error {
	if to == "" {
		return nil
	}
	if ca := os.Getenv("BINNACLE_NATS_TLS_CA"); ca != "" {
		if err := ring.PutNATSCA(ca); err != nil {
			return fail(exitUsage, "BINNACLE_NATS_TLS_CA: %v", err)
		}
	}
	return mesh.Distribute(ring, to, bus.ServerOptions{StoreDir: natsStore, Listen: natsListen, HTTP: natsMonitor, SyncAlways: os.Getenv("BINNACLE_DURABILITY") == "power",
		TLSCert: os.Getenv("BINNACLE_NATS_TLS_CERT"), TLSKey: os.Getenv("BINNACLE_NATS_TLS_KEY")})
}

// Where an external NATS server keeps its store and listens, unless flags say
// otherwise.
const (
	natsStore   = "/data"
	natsListen  = "0.0.0.0:4222"
	natsMonitor = "127.0.0.1:8222"
)

// provision keeps an external server as declared, or prints its
// configuration.
func provision(ctx context.Context, c *env) error {
	show := c.fs.Bool("print-config", false, "print the NATS server's configuration and exit")
	url := c.fs.String("nats", envOr("BINNACLE_NATS", "nats://127.0.0.1:4222"), "NATS server")
	store := c.fs.String("store", natsStore, "store directory in the printed configuration")
	listen := c.fs.String("nats-listen", natsListen, "listen address in the printed configuration")
	monitor := c.fs.String("monitor", natsMonitor, "monitoring address in the printed configuration; empty for none")
	natsCert, natsKey := natsTLS(c.fs)
	power := c.fs.Bool("power", false, "fsync every event, in the printed configuration")
	replicas := c.fs.Int("replicas", 1, "stream replicas")
	mirror := c.fs.Bool("mirror", os.Getenv("BINNACLE_MIRROR") != "", "keep a mirror of the ledger in an account of its own")
	keys := c.fs.String("keys", "", "folder of keys (default DATA/keys)")
	server := c.fs.String("cluster-server", "", "this server's name in a cluster, in the printed configuration; empty for a server on its own")
	routes := c.fs.String("cluster-listen", "0.0.0.0:6222", "address for the other servers, in the printed configuration")
	var peers list
	c.fs.Var(&peers, "cluster-route", "host:port of a server of the cluster; name all of them")
	pos, err := c.parse(0, 1, "[flags] [health]")
	if err != nil {
		return err
	}
	if len(pos) == 1 {
		if pos[0] != "health" {
			return fail(exitUsage, "usage: binnacle provision [flags] [health]")
		}
		if run.AskHealth("provision") != 0 {
			return errors.New("no provisioner on this host, or the server is not as declared")
		}
		return nil
	}
	if *keys == "" {
		*keys = filepath.Join(*c.data, "keys")
	}
	ring, err := keyring.Open(*keys)
	if err != nil {
		return err
	}
	if *show {
		o := bus.ServerOptions{StoreDir: *store, Listen: *listen, HTTP: *monitor, SyncAlways: *power, TLSCert: *natsCert, TLSKey: *natsKey}
		if *server != "" {
			secret, err := ring.ClusterSecret()
			if err != nil {
				return err
			}
			o.Cluster = &bus.Cluster{Server: *server, Listen: *routes, Routes: peers, Secret: secret}
		}
		conf, err := mesh.ServerConfig(ring, o)
		if err != nil {
			return err
		}
		return c.print(map[string]string{"config": conf}, func() { fmt.Fprint(c.out, conf) })
	}
	p := mesh.Provisioner{Dialer: bus.Dialer{URL: *url, CA: run.NATSCA(*keys)}, Ring: ring, Tenant: "default", Replicas: *replicas, Mirror: *mirror}
	go run.AnswerHealth("provision", p.Provisioned)
	return p.Run(ctx, func() {
		_ = c.print(map[string]bool{"provisioned": true}, func() { fmt.Fprintln(c.out, "provisioned") })
	})
}
