package run

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/logs"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Keys is the folder a service process reads its own keys from.
type Keys string

// Seed reads 32 bytes kept in hex.
func (k Keys) Seed(name string) ([]byte, error) {
	raw, err := os.ReadFile(k.Path(name))
	if err != nil {
		return nil, err
	}
	return ParseSeed(k.Path(name), string(raw))
}

// ParseSeed reads 32 bytes kept in hex; where names the place in errors, which
// never hold the text itself.
func ParseSeed(where, text string) ([]byte, error) {
	b, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(b) != 32 {
		return nil, fmt.Errorf("%s does not hold 32 bytes in hex", where)
	}
	return b, nil
}

// Text reads a file of one line.
func (k Keys) Text(name string) (string, error) {
	raw, err := os.ReadFile(k.Path(name))
	return strings.TrimSpace(string(raw)), err
}

// Path is a key file's place.
func (k Keys) Path(name string) string { return filepath.Join(string(k), name) }

// usualFile is the configuration file of a service that nothing names one to.
const usualFile = "/etc/binnacle/binnacle.yaml"

// ConfigFile is the configuration file of a service that is a process of its own: what
// BINNACLE_CONFIG_FILE names, or the usual one if it exists, or none.
func ConfigFile() string {
	if f := os.Getenv("BINNACLE_CONFIG_FILE"); f != "" {
		return f
	}
	if _, err := os.Stat(usualFile); err != nil {
		return ""
	}
	return usualFile
}

// loadConfig reads the configuration of a service: ConfigFile, and the files of the
// folder BINNACLE_CONFIG.
func loadConfig(service string) (*config.Loaded, error) {
	folder := os.Getenv("BINNACLE_CONFIG")
	if folder == "" {
		folder = "/config"
	}
	return config.Load(config.Source{Program: service, File: ConfigFile(), Folder: folder, Getenv: os.Getenv})
}

// Main runs one service as a process of its own and does not return. Its configuration
// is read by package config and handed to build; a wrong one ends the process with
// exit code 1, after a line of the log for each problem.
//
// SIGUSR1 logs a level more while it runs, SIGUSR2 a level less.
//
// Started with the argument "health" it queries the running process instead and
// exits 0 when that takes work. SIGTERM drains: stop pulling, finish or hand
// back work, flush, exit 0.
func Main(service string, build func(Keys, *config.Config) (Service, error)) {
	if len(os.Args) == 2 && os.Args[1] == "health" {
		os.Exit(AskHealth(service))
	}
	debug.SetGCPercent(300) // the heap is small and garbage is plenty
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c, err := loadConfig(service)
	if err != nil {
		logs.Start(ctx, os.Stderr, logs.JSON, slog.LevelInfo)
		for _, p := range config.Problems(err) {
			slog.Error("configuration refused", "service", service, "err", p)
		}
		os.Exit(1)
	}
	level, _ := logs.Parse(c.Config.Log.Level) // it was checked
	p, err := StartProcess(ctx, c, func() (*config.Loaded, error) { return loadConfig(service) }, logs.Start(ctx, os.Stderr, logs.JSON, level))
	if err == nil {
		err = serveProcess(ctx, service, p, build)
	}
	if err != nil {
		slog.Error("stopped", "service", service, "err", err)
		os.Exit(1)
	}
}

// NATSCA is the file of the authority that signed the NATS server's
// certificate: BINNACLE_NATS_CA, or nats.ca in the folder of keys, or none.
func NATSCA(keys string) string {
	if f := os.Getenv("BINNACLE_NATS_CA"); f != "" {
		return f
	}
	f := filepath.Join(keys, "nats.ca")
	if _, err := os.Stat(f); err != nil {
		return ""
	}
	return f
}

func serveProcess(ctx context.Context, service string, p *Process, build func(Keys, *config.Config) (Service, error)) error {
	c := &p.Live.Config().Config
	keys := Keys(c.Keys)
	if err := private.Check(string(keys)); err != nil {
		return err
	}
	s, err := build(keys, c)
	if err != nil {
		return err
	}
	cfg := Config{Dialer: bus.Dialer{URL: c.NATS.URL, CA: cmp.Or(c.NATS.CA, NATSCA(string(keys)))}, Tenant: c.Tenant, TracesTo: c.Tracing.Endpoint, Live: p.Live, Metrics: p.Metrics}
	if cfg.RootKID, err = keys.Text("root.kid"); err != nil {
		return err
	}
	nkey, err := keys.Text(service + ".nkey")
	if err != nil {
		return err
	}
	cfg.NKeySeed = []byte(nkey)
	if _, err := os.Stat(keys.Path(service + ".sign")); err == nil { // the gateway of an old key ring has none
		cfg.SignSeed = func() ([]byte, error) { return keys.Seed(service + ".sign") }
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	go AnswerHealth(service, p.Ready.Load)
	defer p.Ready.Store(false)
	return Serve(ctx, cfg, s, func() {
		p.Ready.Store(true)
		slog.Info("ready", "service", service)
	})
}

// healthSocket is an abstract socket: it lives in the network namespace, so a
// container's health check finds its own service without a port or a file.
func healthSocket(service string) string { return "@binnacle-health-" + service }

// AnswerHealth answers health checks of this host, or container, for as long as
// the process runs.
func AnswerHealth(service string, ready func() bool) {
	l, err := net.Listen("unix", healthSocket(service))
	if err != nil {
		return // another instance on this host answers
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if ready() {
			_, _ = io.WriteString(c, "ok")
		}
		c.Close()
	}
}

// AskHealth returns the exit code of a health check: 0 when the service runs on
// this host and takes work.
func AskHealth(service string) int {
	c, err := net.DialTimeout("unix", healthSocket(service), time.Second)
	if err != nil {
		return 1
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if b, _ := io.ReadAll(c); string(b) == "ok" {
		return 0
	}
	return 1
}
