package run

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/healthcheck"
	"github.com/binnacle-mesh/binnacle/pkg/logs"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// Keys is the path of the folder that holds the key files of a service's process.
type Keys string

// Seed returns the 32 bytes that the key file with the given name holds in hex.
func (k Keys) Seed(name string) ([]byte, error) {
	raw, err := os.ReadFile(k.Path(name))
	if err != nil {
		return nil, err
	}
	return ParseSeed(k.Path(name), string(raw))
}

// Seeds returns the seeds in a key file, one a line: the current key first, and the former one
// until it is retired.
func (k Keys) Seeds(name string) ([][]byte, error) {
	raw, err := os.ReadFile(k.Path(name))
	if err != nil {
		return nil, err
	}
	return ParseSeeds(k.Path(name), string(raw))
}

// ParseSeeds parses 32 bytes in hex a line, of one line at least; see ParseSeed.
func ParseSeeds(where, text string) (out [][]byte, err error) {
	for i, line := range strings.Fields(text) {
		b, err := hex.DecodeString(line)
		if err != nil || len(b) != 32 {
			return nil, fmt.Errorf("line %d of %s does not hold 32 bytes in hex", i+1, where)
		}
		out = append(out, b)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s does not hold 32 bytes in hex", where)
	}
	return out, nil
}

// ParseSeed parses 32 bytes in hex, in the first line of text. where is the origin of the text, for
// error messages, which never contain the text itself.
func ParseSeed(where, text string) ([]byte, error) {
	seeds, err := ParseSeeds(where, text)
	if err != nil {
		return nil, err
	}
	return seeds[0], nil
}

// Text returns the content of a key file without surrounding white space.
func (k Keys) Text(name string) (string, error) {
	raw, err := os.ReadFile(k.Path(name))
	return strings.TrimSpace(string(raw)), err
}

// Path returns the path of the key file with the given name.
func (k Keys) Path(name string) string { return filepath.Join(string(k), name) }

// usualFile is the default configuration file of a service.
const usualFile = "/etc/binnacle/binnacle.yaml"

// ConfigFile returns the path of the configuration file of a service that runs as a
// process of its own: the value of BINNACLE_CONFIG_FILE, or else usualFile if it exists,
// or else "".
func ConfigFile() string {
	if f := os.Getenv("BINNACLE_CONFIG_FILE"); f != "" {
		return f
	}
	if _, err := os.Stat(usualFile); err != nil {
		return ""
	}
	return usualFile
}

// loadConfig reads the configuration of a service from ConfigFile, the configuration
// folder in BINNACLE_CONFIG (/config by default) and environment variables.
func loadConfig(service string) (*config.Loaded, error) {
	folder := os.Getenv("BINNACLE_CONFIG")
	if folder == "" {
		folder = "/config"
	}
	return config.Load(config.Source{Program: service, File: ConfigFile(), Folder: folder, Getenv: os.Getenv})
}

// Main runs one service as a process of its own. It does not return if the
// configuration is invalid, or if StartProcess or the service fails: it logs the
// errors, one line for each problem of the configuration, and exits with code 1. build
// makes the service from its key files and configuration.
//
// With the argument "health", Main instead checks the health of the service's process
// on this host and exits with the result of healthcheck.Check.
//
// SIGTERM and SIGINT end the service: it stops receiving work, finishes the work that it
// has received or returns it to the server, and Main returns. SIGUSR1 and SIGUSR2 change
// the log level by one step to more and to fewer messages. SIGHUP reloads the
// configuration if it has a file.
func Main(service string, build func(Keys, *config.Config) (Service, error)) {
	if len(os.Args) == 2 && os.Args[1] == "health" {
		os.Exit(healthcheck.Check(service))
	}
	debug.SetGCPercent(300) // the live heap is small and most allocations are short-lived, so collecting less often saves CPU and costs little memory
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
	level, _ := logs.Parse(c.Config.Log.Level) // no error: config.Load rejects an unknown level
	p, err := StartProcess(ctx, c, func() (*config.Loaded, error) { return loadConfig(service) }, logs.Start(ctx, os.Stderr, logs.JSON, level))
	if err == nil {
		err = serveProcess(ctx, service, p, build)
	}
	if err != nil {
		slog.Error("stopped", "service", service, "err", err)
		os.Exit(1)
	}
}

// NATSCA returns the path of the CA certificate for the NATS server: the value of
// BINNACLE_NATS_CA, or else nats.ca in the folder of keys if it exists, or else "".
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

// serveProcess reads the service's keys, builds the service and runs it until ctx ends.
// It returns an error if private.Check rejects the folder of keys, if a key file cannot
// be read, or if build or Serve fails. The file of the signing key may be missing.
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
	cfg := Config{Dialer: bus.Dialer{URL: c.NATS.URL, CA: cmp.Or(c.NATS.CA, NATSCA(string(keys)))}, TracesTo: c.Tracing.Endpoint, Live: p.Live, Metrics: p.Metrics, Starting: NewStarting(), NoSnapshots: !c.Snapshots}
	if cfg.RootKID, err = keys.Text("root.kid"); err != nil {
		return err
	}
	nkey, err := keys.Text(service + ".nkey")
	if err != nil {
		return err
	}
	cfg.NKeySeed = []byte(nkey)
	cfg.NKey = func() (string, error) { return keys.Text(service + ".nkey") }
	if _, err := os.Stat(keys.Path(service + ".sign")); err == nil { // a service that signs nothing has no such file; the gateway has none in key rings of old releases
		cfg.SignSeed = func() ([]byte, error) { return keys.Seed(service + ".sign") }
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	go AnswerHealth(service, p.Ready.Load, cfg.Starting)
	defer p.Ready.Store(false)
	return Serve(ctx, cfg, s, func() {
		p.Ready.Store(true)
		slog.Info("ready", "service", service)
	})
}

// AnswerHealth answers the health checks of a service (healthcheck.Answer). The service is
// starting until ready returns true, as long as s has made progress within StartPatience.
// AnswerHealth returns when it cannot listen, in general because another instance on this
// host listens already.
func AnswerHealth(service string, ready func() bool, s *Starting) {
	_ = healthcheck.Answer(service, ready, func() bool { return s.Still() < StartPatience })
}
