package run

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/logs"
)

// taker is a service that records the capture modes of the configurations with which it
// is reloaded.
type taker struct {
	Service
	capture string   // capture mode of the last configuration
	all     []string // capture modes of all configurations, in order
}

func (s *taker) Reload(c *config.Config) {
	s.capture = c.Gateway.Capture
	s.all = append(s.all, s.capture)
}

// deaf is a ledger whose method Append always fails.
type deaf struct{ eventlog.Log }

func (deaf) Append(context.Context, string, string, []byte) (uint64, error) {
	return 0, errors.New("no leader")
}

// unsure is a ledger whose method Append returns an error after it has stored the event.
type unsure struct{ eventlog.Log }

func (l unsure) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	_, err := l.Log.Append(ctx, subject, id, data)
	return 0, errors.Join(errors.New("no acknowledgement"), err)
}

// world is a process with instances of a gateway and a judge whose configuration is
// reloaded from a file.
type world struct {
	*Live
	log     eventlog.Log
	file    string
	gateway *taker
	envs    []*Env
}

// newWorld writes text to a configuration file and returns a world that has loaded the
// file and reloads it.
func newWorld(t *testing.T, text string) *world {
	t.Helper()
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	w := &world{log: &memlog.Log{}, file: filepath.Join(t.TempDir(), "binnacle.yaml"), gateway: &taker{}}
	w.write(t, text)
	load := func() (*config.Loaded, error) { return config.Load(config.Source{Program: config.Up, File: w.file}) }
	now, err := load()
	if err != nil {
		t.Fatal(err)
	}
	w.Live = &Live{Load: load, Level: logs.Start(t.Context(), io.Discard, logs.JSON, slog.LevelInfo), Metrics: NewMetrics()}
	w.Live.Start(t.Context(), now)
	for name, s := range map[string]Service{"gateway": w.gateway, "judge": &struct{ Service }{}} {
		v := &Env{Cell: ofDefault(), Service: name, Instance: name + "-1", Emit: &emit.Emitter{Log: w.log, Tenant: "default", Source: name + "/" + name + "-1", Now: time.Now}}
		w.envs = append(w.envs, v)
		t.Cleanup(w.add(v, s))
	}
	return w
}

func (w *world) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(w.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// facts returns the config_reloaded events on the ledger, sorted, each as its source and
// members.
func (w *world) facts(t *testing.T) (out []string) {
	t.Helper()
	for en, err := range w.log.Scan(context.Background(), bus.Filter{Event: contract.EventConfigReloaded}.String(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		var doc contract.ConfigReloaded
		if err := errors.Join(contract.Decode(e.Data, &doc), e.CheckData()); err != nil || !strings.HasPrefix(doc.Digest, "sha256:") {
			t.Fatal(err, doc)
		}
		out = append(out, e.Source+" "+strings.Join(doc.Members, ","))
	}
	slices.Sort(out)
	return out
}

// quiet is the part of a configuration file that turns its periodic check off.
const quiet = "reload: {interval: 0s}\n"

// TestReload shows that a change of members that may change at run time is recorded for
// every instance that reads one of them, and is applied. A reload without such a change
// records nothing.
func TestReload(t *testing.T) {
	w := newWorld(t, quiet)
	w.write(t, quiet+"log: {level: debug}\ngateway: {capture: hashed}\n")
	w.follow(t.Context(), false)
	want := []string{"gateway/gateway-1 /log/level,/gateway/capture", "judge/judge-1 /log/level"}
	if got := w.facts(t); !slices.Equal(got, want) || w.Level.Name() != "debug" || w.gateway.capture != "hashed" || w.Config().Config.Gateway.Capture != "hashed" {
		t.Errorf("%v %s %s", got, w.Level.Name(), w.gateway.capture)
	}
	w.follow(t.Context(), true)
	w.write(t, "# a remark\n"+quiet+"log: {level: debug}\ngateway: {capture: hashed}\n")
	w.follow(t.Context(), false)
	if got := w.facts(t); len(got) != 2 {
		t.Errorf("nothing changed, and yet: %v", got)
	}
}

// TestReloadRefused shows that a file that is invalid, or that changes a member that
// requires a restart, changes nothing and records nothing. Removing the file changes
// nothing either.
func TestReloadRefused(t *testing.T) {
	w := newWorld(t, quiet)
	for _, text := range []string{
		"log: {level: loud}\ngateway: {capture: hashed}\n", "surplus: 1\n", "log: {", "durability: power\nlog: {level: debug}\n", "gateway: {listen: '127.0.0.1:1', capture: hashed}\n",
	} {
		w.write(t, quiet+text)
		w.follow(t.Context(), false)
		if got := w.facts(t); len(got) > 0 || w.Level.Name() != "info" || w.gateway.capture != "" || w.Config().Config.Durability != "process" {
			t.Errorf("%q: %v %s %q", text, got, w.Level.Name(), w.gateway.capture)
		}
	}
	if err := os.Remove(w.file); err != nil {
		t.Fatal(err)
	}
	w.follow(t.Context(), false)
	if w.Config().Config.Gateway.Capture != "plain" {
		t.Error("a file that is gone changes the configuration")
	}
}

// TestReloadIsRecordedFirst shows that a reload that cannot be recorded is not applied,
// and is retried.
func TestReloadIsRecordedFirst(t *testing.T) {
	w := newWorld(t, quiet)
	for _, v := range w.envs {
		v.Emit.Log = deaf{w.log}
	}
	w.write(t, quiet+"log: {level: debug}\n")
	w.follow(t.Context(), false)
	if w.Level.Name() != "info" {
		t.Error("taken up without a record")
	}
	for _, v := range w.envs {
		v.Emit.Log = w.log
	}
	w.follow(t.Context(), false)
	if w.Level.Name() != "debug" || len(w.facts(t)) != 2 {
		t.Error(w.Level.Name(), w.facts(t))
	}
}

// TestReloadIsCompleted shows that a reload of which an event was not acknowledged is
// recorded for every instance and applied, although the file was changed back meanwhile.
// The changed file is recorded and applied only after that. Each event is stored once.
func TestReloadIsCompleted(t *testing.T) {
	for name, failing := range map[string]func(eventlog.Log) eventlog.Log{
		"not stored": func(l eventlog.Log) eventlog.Log { return deaf{l} },
		"stored":     func(l eventlog.Log) eventlog.Log { return unsure{l} },
	} {
		for fails := range 2 { // index in w.envs of the instance whose event is not acknowledged
			w := newWorld(t, quiet)
			w.envs[fails].Emit.Log = failing(w.log)
			w.write(t, quiet+"log: {level: debug}\ngateway: {capture: hashed}\n")
			w.follow(t.Context(), false)
			if w.gateway.capture != "" || w.Level.Name() != "info" {
				t.Errorf("%s: applied before it is recorded", name)
			}
			w.write(t, quiet)
			w.follow(t.Context(), false)
			if w.interval() != appendAgain {
				t.Errorf("%s: tried again after %v", name, w.interval())
			}
			w.envs[fails].Emit.Log = w.log
			w.follow(t.Context(), false)
			if !slices.Equal(w.gateway.all, []string{"hashed", "plain"}) || w.Level.Name() != "info" || w.interval() != 0 {
				t.Errorf("%s: applied %v, %s", name, w.gateway.all, w.Level.Name())
			}
			const gateway, judge = "gateway/gateway-1 /log/level,/gateway/capture", "judge/judge-1 /log/level"
			if got := w.facts(t); !slices.Equal(got, []string{gateway, gateway, judge, judge}) {
				t.Errorf("%s: recorded %q", name, got)
			}
		}
	}
}

// TestReloadByItself shows that a change is applied at the next interval, and that
// SIGHUP reloads the file after the interval was set to 0.
func TestReloadByItself(t *testing.T) {
	w := newWorld(t, "reload: {interval: 5ms}\n")
	becomes := func(level string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); w.Level.Name() != level; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the level stays %s, want %s", w.Level.Name(), level)
			}
		}
	}
	w.write(t, "reload: {interval: 0s}\nlog: {level: debug}\n")
	becomes("debug")
	time.Sleep(20 * time.Millisecond)
	w.write(t, "reload: {interval: 0s}\nlog: {level: warn}\n")
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	becomes("warn")
}

// ofDefault returns the cell of a ledger whose only tenant is default.
func ofDefault() *Cell {
	c := &Cell{}
	c.apply(1, &contract.Event{ID: "e-1", Name: contract.EventKeyPublished, Source: "provision/provision-1", Tenant: "default"}, nil)
	return c
}
