package run

import (
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
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
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

// Getenv reads an environment variable with a default.
func Getenv(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

// ConfigFile is the path that an environment variable names; where it is empty,
// the file or folder of that name in the configuration folder (BINNACLE_CONFIG,
// /config); "" where there is neither.
func ConfigFile(env, name string) string {
	if v := os.Getenv(env); v != "" {
		return v
	}
	path := filepath.Join(Getenv("BINNACLE_CONFIG", "/config"), name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// ConfigFiles is like ConfigFile for a comma-separated list; where the variable
// is empty, it is the files of the configuration folder with one of the endings,
// by name.
func ConfigFiles(env string, endings ...string) []string {
	if v := os.Getenv(env); v != "" {
		return strings.Split(v, ",")
	}
	var out []string
	for _, e := range endings {
		found, _ := filepath.Glob(filepath.Join(Getenv("BINNACLE_CONFIG", "/config"), "*"+e)) // the pattern is well-formed
		out = append(out, found...)
	}
	slices.Sort(out)
	return out
}

// Main runs one service as a process of its own and does not return. It reads
//
//	BINNACLE_NATS    NATS server (nats://127.0.0.1:4222)
//	BINNACLE_KEYS    folder of key files (/run/secrets)
//	BINNACLE_CONFIG  folder of configuration files (/config)
//	BINNACLE_TENANT  environment id (default)
//	BINNACLE_LOG     level of the log: debug, info, warn or error (info)
//
// SIGUSR1 logs a level more while it runs, SIGUSR2 a level less.
//
// Started with the argument "health" it asks the running process instead and
// exits 0 when that takes work. SIGTERM drains: stop pulling, finish or hand
// back work, flush, exit 0.
func Main(service string, build func(Keys) (Service, error)) {
	if len(os.Args) == 2 && os.Args[1] == "health" {
		os.Exit(AskHealth(service))
	}
	debug.SetGCPercent(300) // the heap is small and garbage is plenty
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	level, err := logs.Parse(os.Getenv("BINNACLE_LOG"))
	logs.Start(ctx, os.Stderr, logs.JSON, level)
	if err != nil {
		slog.Error("BINNACLE_LOG is not used", "err", err)
	}
	if err := serveProcess(ctx, service, build); err != nil {
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

func serveProcess(ctx context.Context, service string, build func(Keys) (Service, error)) error {
	keys := Keys(Getenv("BINNACLE_KEYS", "/run/secrets"))
	if err := private.Check(string(keys)); err != nil {
		return err
	}
	s, err := build(keys)
	if err != nil {
		return err
	}
	cfg := Config{Dialer: bus.Dialer{URL: Getenv("BINNACLE_NATS", "nats://127.0.0.1:4222"), CA: NATSCA(string(keys))}, Tenant: Getenv("BINNACLE_TENANT", "default")}
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
	var ready atomic.Bool
	go AnswerHealth(service, ready.Load)
	defer ready.Store(false)
	return Serve(ctx, cfg, s, func() {
		ready.Store(true)
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
