// Package mesh runs a whole mesh in one process: an embedded NATS server and every
// service, each with its own connection and identity. Programs can embed it; `binnacle
// up` uses it.
package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nkeys"
	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/tlsfiles"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/vaultbroker"
)

// Version is the version of this program, as run.Version returns it.
var Version = run.Version()

// DefaultTenant is the tenant of a new mesh whose configuration names none.
const DefaultTenant = "default"

// Config configures a mesh in one process. Dir is required; the zero value of every
// other field is usable.
type Config struct {
	Dir             string                   // folder of the mesh's state: keys, ledger, views
	Addr            string                   // listen address of the gateway; default 127.0.0.1:8080
	Tenant          string                   // name of the tenant; default is that of the keys in Dir, and DefaultTenant if Dir has none
	Packs           string                   // folder of packs; empty = none
	Scripts         string                   // where scripts of packs without an image run: "host", the name of an image, or empty
	PackKeys        sessionrunner.PackKeys   // keys whose signatures of archives of packs are trusted
	Containerd      string                   // path of containerd's socket; empty = tier "container" is not available
	EgressHosts     []string                 // hosts that tools may reach at most: exact, "*.suffix" or "*"; nil = every host that policy permits
	EgressNetworks  []string                 // special-use networks that tools may reach, such as 10.0.0.0/8
	Images          string                   // folder of image archives and images.lock; empty = none
	Warm            int                      // maximum number of containers that are prepared ahead of calls; 0 = none
	Registries      []string                 // registries from which images may be pulled
	RegistryHosts   []string                 // further hosts that image.pull may reach
	RegistrySecrets []string                 // logins at registries, HOST=NAME of a secret
	RegistryCA      string                   // PEM file of the authorities of the registries; empty = those of the system
	Runs            int                      // maximum number of sandboxes of calls at a time; 0 = 16
	Queue           int                      // maximum number of calls that wait for a sandbox; 0 means none
	Classes         []string                 // concurrency classes of packs, CLASS=N
	OCIRuntime      string                   // command of the OCI runtime for containers; empty = runc
	MicroVM         string                   // containerd runtime of tier "microvm"; empty = that tier is not available
	Sandboxes       sessionrunner.HeldConfig // held sandboxes of the session-runner
	Exports         []string                 // servers to which programs may export events through the egress-broker: HOST, HOST:PORT or tcp://HOST:PORT
	MaxArtifacts    int64                    // maximum size in bytes of the stream ARTIFACTS; 0 = no limit of its own
	Artifacts       artifact.Collected       // store of the content of artifacts; nil = the stream ARTIFACTS
	Collector       artifact.Collected       // the same store with the rights to remove; nil = Artifacts
	ArtifactQuota   int64                    // maximum number of bytes of the artifacts of one tenant; 0 = 100 GB
	Policies        []string                 // bundles (.tar.gz) and Rego files; the Rego files together replace the built-in bundle; empty = only the built-in bundle
	BundleServers   []string                 // servers from which policy downloads bundles: HOST, HOST:PORT or http://HOST:PORT; empty = none
	Power           bool                     // sync events to disk before they are acted on or answered, so that a power failure loses none of them
	Noop            bool                     // offer tool.noop, for benchmarks and tests
	VaultKEK        []byte                   // the vault's key-encryption key, 32 bytes; nil = the key that Init made in Dir/keys
	TokenEndpoints  []string                 // servers from which the vault-broker obtains access tokens, like BundleServers
	ClientDocument  string                   // URL of the document that describes the mesh as a client of OAuth; "" = none
	TokenCA         string                   // PEM file of the authority of their certificates; "" = the system's
	Transit         vaultbroker.Transit      // key of Vault that wraps the vault's key-encryption key; none without a name
	Vault           vaultbroker.Vault        // Vault server that stores secrets and content keys; its zero value = encrypted files in Dir
	Mirror          bool                     // maintain a mirror of the ledger in a separate NATS account
	NoSnapshots     bool                     // build every view from the ledger's first event, and store no snapshots
	TLSCert         string                   // PEM files with the gateway's certificate and key; empty = plain HTTP
	TLSKey          string
	ClientCA        string      // PEM file of the authorities of clients' certificates
	ClientCerts     string      // whether clients of the gateway present certificates: off, request or require; empty = off
	ACME            config.ACME // authority from which the gateway obtains its certificate; none without domains. Without a folder it is acme in Dir
	NATSCert        string      // PEM files with the NATS listener's certificate and key; empty = plain TCP
	NATSKey         string
	MaxStore        int64        // maximum size of the streams on disk, in bytes; 0 = 1 TB
	NATSListen      string       // also listen for NATS clients on host:port; empty = in process only
	OIDC            config.OIDC  // identity provider; without an issuer none
	OAuth           config.OAuth // programs that may obtain logins by authorization codes
	PublicURL       string       // URL under which browsers reach the gateway; empty = that of each request
	JobWebhook      string       // URL that receives a notification, signed with keys/webhook.seed, of the end of each job; empty = none
	Origins         []string     // origins whose pages may use the API (CORS); nil = none
	AddressRate     int          // requests per second from one address; 0 = no limit
	ApprovalPage    string       // URL of the page for approvers that clients of MCP and the approval webhook are offered, in which {call} stands for the id of a call; empty = that of the gateways at PublicURL
	Webhook         string       // URL that receives a notification, signed with keys/webhook.seed, of each call that waits for approval; empty = none
	Capture         string       // how the ledger stores prompts and answers: plain, encrypted, hashed or off; empty = plain
	Process         *run.Process // provides live configuration and metrics to the services; nil = neither
	TracesTo        string       // base URL of an OpenTelemetry collector; OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT overrides it; without any of them there are no spans
	LLM             llmrouter.Config
}

// Mesh is a running mesh. Its methods are safe for concurrent use.
type Mesh struct {
	Addr    string // listen address of the gateway
	Token   string // bearer token of the original tenant's administrator
	RootKID string // key id of the root key, the trust anchor for verifying evidence

	// OperatorToken is the bearer token of the first operator, who governs the mesh as a
	// whole and reads the whole ledger. It is empty if the cell is not open (see
	// Provisioner); the administrator is the operator then.
	OperatorToken string

	scheme   string       // scheme of the gateway's URL: http or https
	handler  http.Handler // of the gateway
	starting *run.Starting
	stop     context.CancelFunc
	done     chan struct{}
	err      error
	server   *embed.Server
	lock     *os.File
	// natsConfig returns the configuration of the NATS server for the identities that the ring
	// has now.
	natsConfig func() (string, error)
	natsText   string            // that of the server's start
	seeds      map[string][]byte // seed of each service's NATS user key in this process
}

// ServerConfig returns the configuration of a NATS server for the identities in a ring,
// with the permissions that the services' declarations require. It makes the mirrors'
// identities if the ring has none. If o.MaxFile is empty, the limit of the streams on
// disk is 1 TB. If o.ProcessKeys is set and o.Listen is empty, the ring's identities of
// services are omitted, because nothing connects with them.
func ServerConfig(ring *keyring.Ring, o bus.ServerOptions) (string, error) {
	var err error
	if o.ProvisionKey, err = ring.NKeyPublic(services.Provision); err != nil {
		return "", err
	}
	if o.ProcessKeys == nil || o.Listen != "" {
		o.ServiceKeys = map[string]string{}
		for _, s := range services.Names() {
			if o.ServiceKeys[s], err = ring.NKeyPublic(s); err != nil {
				return "", err
			}
		}
	}
	if err := ring.MirrorNKeys(); err != nil {
		return "", err
	}
	o.Mirror = &bus.MirrorKeys{}
	if o.FormerKeys, err = keyring.FormerNKeys(ring); err != nil {
		return "", err
	}
	if o.Mirror.Keeper, err = ring.NKeyPublic(bus.MirrorKeeper); err != nil {
		return "", err
	}
	if o.Mirror.Auditor, err = ring.NKeyPublic(bus.MirrorAuditor); err != nil {
		return "", err
	}
	if o.MaxFile == "" {
		o.MaxFile = "1T"
	}
	return bus.ServerConfig(Declarations(), o)
}

// Distribute distributes the keys of a ring to the folders of dir (see
// keyring.Ring.Distribute). If the folder dir/nats exists, Distribute also writes the
// NATS server's configuration to dir/nats/nats.conf, with the owner of that folder and
// mode 0600.
func Distribute(ring *keyring.Ring, dir string, o bus.ServerOptions) error {
	conf, err := ServerConfig(ring, o)
	if err != nil {
		return err
	}
	if err := ring.Distribute(dir); err != nil {
		return err
	}
	to := filepath.Join(dir, "nats")
	if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return keyring.PutOwned(filepath.Join(to, "nats.conf"), []byte(conf))
}

// Sizes of the caches of a process that runs a mesh.
const (
	signatures = 4096 // see sign.Remember; several services verify the signatures of a call, mostly within a second
	documents  = 1024 // see catalog.Remember; several services read the documents of the tools, mostly when they start
)

// Start starts a mesh and returns when its gateway accepts calls and every service has
// caught up with the ledger. It makes the keys that Dir lacks; keys of another tenant
// than Tenant are an error. The mesh stops when ctx is done or Stop is called. Start has
// no time limit while it makes progress, because rebuilding views takes longer as the
// ledger grows. If it makes no progress for run.StartPatience before the gateway accepts
// calls, it returns an error that names the views and instances that are not ready. If
// it makes none for 15 seconds after the gateway has begun to accept calls, it logs a
// warning and returns the mesh. The error wraps ErrInUse if the folder is in use, and
// the error of ctx if ctx is done during the start. After an error, the mesh is nil and
// has ended.
func Start(ctx context.Context, cfg Config) (*Mesh, error) {
	if cfg.Dir == "" {
		return nil, errors.New("mesh: Dir is empty; name a folder for its state")
	}
	cfg.Addr = cmp.Or(cfg.Addr, "127.0.0.1:8080")
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	ring, err := Init(dir, cmp.Or(cfg.Tenant, DefaultTenant))
	if err != nil {
		return nil, fmt.Errorf("mesh: %w", err)
	}
	tenant, err := ring.Tenant()
	if err != nil {
		return nil, fmt.Errorf("mesh: %w", err)
	}
	if cfg.Tenant = cmp.Or(cfg.Tenant, tenant); cfg.Tenant != tenant {
		return nil, fmt.Errorf("mesh: tenant %q: the keys in %s belong to tenant %q; use another folder for another mesh", cfg.Tenant, ring.Dir, tenant)
	}
	m := &Mesh{RootKID: ring.RootKID, scheme: "http", starting: run.NewStarting(), done: make(chan struct{})}
	if m.Token, err = AdminToken(dir, ring); err != nil {
		return nil, err
	}
	if cfg.TLSCert != "" || len(cfg.ACME.Domains) > 0 {
		m.scheme = "https"
	}
	if err := m.listen(&cfg, dir, ring); err != nil {
		return nil, err
	}
	sign.Remember(signatures)
	catalog.Remember(documents)
	ctx, m.stop = context.WithCancel(ctx)
	ready := make(chan struct{})
	go m.run(ctx, cfg, dir, ring, ready)
	if err := m.await(ctx, ready); err != nil {
		return nil, err
	}
	if err := m.answers(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// ended stops the mesh and waits until it has ended. It returns the error of ctx, joined
// with that of the mesh, and never nil.
func (m *Mesh) ended(ctx context.Context) error {
	err := ctx.Err() // read before Stop, which cancels ctx
	if err = errors.Join(err, m.Stop()); err == nil {
		err = errors.New("mesh: ended while it started")
	}
	return err
}

// await waits until ready is closed. If the mesh ends first, it returns the error of
// ended. If the start makes no progress for run.StartPatience, it stops the mesh and
// returns an error that names the views and instances that are not ready.
func (m *Mesh) await(ctx context.Context, ready <-chan struct{}) error {
	for {
		select {
		case <-ready:
			return nil
		case <-m.done:
			return m.ended(ctx)
		case <-time.After(time.Second):
		}
		if m.starting.Still() < run.StartPatience {
			continue
		}
		what := strings.Join(m.starting.Waiting(), "; ")
		m.stop()
		<-m.done
		return errors.Join(fmt.Errorf("mesh: no progress for %v: %s", run.StartPatience, cmp.Or(what, "no service has connected to the ledger")), m.err)
	}
}

// listen locks the folder and starts the NATS server on it. If it returns no error, the
// caller shuts down the server and closes the lock.
func (m *Mesh) listen(cfg *Config, dir string, ring *keyring.Ring) error {
	files, err := tlsfiles.Open(cfg.NATSCert, cfg.NATSKey)
	if err != nil {
		return fmt.Errorf("nats: %w", err)
	}
	store, err := storeFolder(dir)
	if err != nil {
		return err
	}
	maxFile := ""
	if cfg.MaxStore > 0 {
		maxFile = strconv.FormatInt(cfg.MaxStore, 10)
	}
	keys, err := m.identities()
	if err != nil {
		return err
	}
	m.natsConfig = func() (string, error) {
		return ServerConfig(ring, bus.ServerOptions{StoreDir: store, MaxFile: maxFile, SyncAlways: cfg.Power, Listen: cfg.NATSListen, TLSCert: cfg.NATSCert, TLSKey: cfg.NATSKey, ProcessKeys: keys})
	}
	conf, err := m.natsConfig()
	m.natsText = conf
	if err != nil {
		return err
	}
	if m.lock, err = lock(dir); err != nil {
		return err
	}
	if files == nil && cfg.NATSListen != "" {
		tlsfiles.Warn("nats", cfg.NATSListen)
	}
	if m.server, err = embed.Start(conf, files); err != nil {
		m.lock.Close()
	}
	return err
}

// reload makes the NATS server use the identities of the ring that were replaced or retired since
// its start, until ctx is done. conf is the server's configuration.
func (m *Mesh) reload(ctx context.Context, conf string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(trustPoll):
		}
		now, err := m.natsConfig()
		if err == nil && now != conf {
			err = m.server.Reload(now)
			conf = now
		}
		if err != nil {
			slog.Warn("NATS identities not reloaded", "err", err)
		}
	}
}

// identities makes the NATS user keys with which the services of this process connect,
// and returns the public key of each service. The seeds are only in memory, and a new
// process has new ones, so a copy of the key ring contains none of them.
func (m *Mesh) identities() (map[string]string, error) {
	m.seeds = map[string][]byte{}
	keys := map[string]string{}
	for _, name := range services.Names() {
		kp, err := nkeys.CreateUser()
		if err != nil {
			return nil, err
		}
		if m.seeds[name], err = kp.Seed(); err != nil {
			return nil, err
		}
		if keys[name], err = kp.PublicKey(); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// URL returns the base URL of the gateway, such as http://127.0.0.1:8080.
func (m *Mesh) URL() string { return m.scheme + "://" + m.Addr }

// probe returns the status of a GET request that the gateway of this process handles without a
// connection, which could need a certificate of the client.
func (m *Mesh) probe(ctx context.Context, path string) int {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return 0
	}
	w := &statusWriter{header: http.Header{}}
	m.handler.ServeHTTP(w, r)
	return w.status
}

// statusWriter is an http.ResponseWriter that keeps only the status of the response.
type statusWriter struct {
	header http.Header
	status int
}

// Header implements http.ResponseWriter.
func (w *statusWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) { w.status = cmp.Or(w.status, status) }

// Write implements http.ResponseWriter.
func (w *statusWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(b), nil
}

// answers waits until /readyz reports that every service has caught up with the ledger.
// If the start makes no progress for 15 seconds before that, for example because the
// ledger was truncated, it logs a warning and returns nil: the mesh keeps running, and
// /readyz reports the reason. If ctx or the mesh ends first, answers returns the error
// of ended.
func (m *Mesh) answers(ctx context.Context) error {
	for began := time.Now(); ; {
		if m.probe(ctx, "/readyz") == http.StatusOK {
			return nil
		}
		if min(m.starting.Still(), time.Since(began)) > 15*time.Second {
			slog.Warn("the mesh serves but is not ready; see /readyz")
			return nil
		}
		select {
		case <-ctx.Done():
			return m.ended(ctx)
		case <-m.done:
			return m.ended(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// run runs the mesh until ctx is done, or a service or the provisioner fails. Then it
// shuts down the server, releases the folder, sets m.err and closes m.done. It closes
// ready when all services are ready.
func (m *Mesh) run(ctx context.Context, cfg Config, dir string, ring *keyring.Ring, ready chan struct{}) {
	defer close(m.done)
	// The provisioner must outlive the services, and the NATS server must outlive both.
	base, stopBase := context.WithCancel(context.WithoutCancel(ctx))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d := bus.Dialer{Server: m.server, Joint: true}
	go m.reload(base, m.natsText)
	prov := make(chan error, 1)
	provisioned := make(chan struct{})
	go func() {
		prov <- (&Provisioner{Dialer: d, Ring: ring, Mirror: cfg.Mirror, MaxArtifacts: cfg.MaxArtifacts, Starting: m.starting}).Run(base, func() { close(provisioned) })
		stop() // without the provisioner, no key is published and no lost stream is restored
	}()
	m.err = m.services(ctx, cfg, dir, ring, d, provisioned, ready)
	stopBase()
	m.err = errors.Join(m.err, <-prov)
	m.server.Shutdown()
	m.server.WaitForShutdown()
	m.lock.Close()
}

// services waits until provisioned is closed, and then runs all services until ctx is
// done. It closes ready when all of them are ready. If a service fails, the other
// services are stopped and its error is returned.
func (m *Mesh) services(ctx context.Context, cfg Config, dir string, ring *keyring.Ring, d bus.Dialer, provisioned, ready chan struct{}) error {
	list, err := (&setup{cfg: &cfg, dir: dir, ring: ring, listening: func(a string) { m.Addr = a }, handler: func(h http.Handler) { m.handler = h }}).services()
	if err != nil {
		return err
	}
	select {
	case <-provisioned:
	case <-ctx.Done():
		return nil
	}
	if m.OperatorToken, err = operatorToken(dir, ring); err != nil { // the cell is open now, if it can be
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	up, recent := make(chan struct{}, len(list)), blob.NewRecent()
	for name, s := range list {
		rc := run.Config{Dialer: d, NKeySeed: m.seeds[name], RootKID: ring.RootKID, TracesTo: cfg.TracesTo, Starting: m.starting, NoSnapshots: cfg.NoSnapshots, Recent: recent}
		if cfg.Process != nil {
			rc.Live, rc.Metrics = cfg.Process.Live, cfg.Process.Metrics
		}
		if _, err := os.Stat(ring.Path(name + ".sign")); err == nil { // the gateway has no signing key in a ring of an old release
			rc.SignSeed = func() ([]byte, error) { return ring.Seed(name + ".sign") }
		}
		g.Go(func() error { return run.Serve(ctx, rc, s, func() { up <- struct{}{} }) })
	}
	g.Go(func() error {
		for range list {
			select {
			case <-up:
			case <-ctx.Done():
				return nil
			}
		}
		close(ready)
		return nil
	})
	return g.Wait()
}

// Init makes the missing keys of a mesh in dir/keys and writes the key id of the trust anchor to
// dir/root.kid. tenant is the original tenant of new keys; existing keys keep theirs.
func Init(dir, tenant string) (*keyring.Ring, error) {
	if err := private.Mkdir(dir); err != nil {
		return nil, err
	}
	ring, err := keyring.Init(filepath.Join(dir, "keys"), tenant)
	if err != nil {
		return nil, err
	}
	return ring, private.Write(filepath.Join(dir, "root.kid"), []byte(ring.RootKID+"\n"))
}

// Done returns a channel that is closed when the mesh has ended: because of Stop, the
// end of the context of Start, or an error of a service or of the Provisioner. Err
// returns the error.
func (m *Mesh) Done() <-chan struct{} { return m.done }

// Err waits until the mesh has ended, and returns the error that ended it, or nil.
func (m *Mesh) Err() error { <-m.done; return m.err }

// Stop stops the mesh and returns the result of Err. All services stop accepting work
// and record the work in progress; the NATS server stops after them.
func (m *Mesh) Stop() error {
	m.stop()
	return m.Err()
}
