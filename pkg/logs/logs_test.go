package logs

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/meshtest/output"
)

func TestParse(t *testing.T) {
	for name, want := range map[string]slog.Level{"": slog.LevelInfo, "debug": slog.LevelDebug, "INFO": slog.LevelInfo, "Warn": slog.LevelWarn, "error": slog.LevelError} {
		if l, err := Parse(name); err != nil || l != want {
			t.Errorf("%q: %v %v", name, l, err)
		}
	}
	for _, name := range []string{"verbose", "info ", "1"} {
		if _, err := Parse(name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestNext(t *testing.T) {
	for _, x := range []struct {
		from slog.Level
		more bool
		want slog.Level
	}{
		{slog.LevelInfo, true, slog.LevelDebug}, {slog.LevelDebug, true, slog.LevelDebug}, {slog.LevelInfo, false, slog.LevelWarn},
		{slog.LevelWarn, false, slog.LevelError}, {slog.LevelError, false, slog.LevelError}, {slog.LevelError, true, slog.LevelWarn},
	} {
		if got := next(x.from, x.more); got != x.want {
			t.Errorf("%v, more %v: %v, want %v", x.from, x.more, got, x.want)
		}
	}
}

// TestSignals checks that signals and SetName change the level, that each change is
// logged once, and that an invalid name changes nothing.
func TestSignals(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out output.Buffer
	level := Start(ctx, &out, JSON, slog.LevelWarn)
	send := func(s syscall.Signal, want string) {
		t.Helper()
		if err := syscall.Kill(syscall.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(5 * time.Second); !strings.Contains(out.String(), want); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no %s in\n%s", want, out.String())
			}
		}
	}
	slog.Info("hidden")
	send(syscall.SIGUSR1, `"was":"WARN","is":"INFO"`)
	slog.Info("shown")
	slog.Debug("hidden too")
	send(syscall.SIGUSR1, `"was":"INFO","is":"DEBUG"`)
	slog.Debug("shown too")
	send(syscall.SIGUSR2, `"was":"DEBUG","is":"INFO"`)
	send(syscall.SIGUSR2, `"was":"INFO","is":"WARN"`)
	send(syscall.SIGUSR2, `"was":"WARN","is":"ERROR"`)
	if err := level.SetName("loud"); err == nil || level.Name() != "error" {
		t.Error(level.Name(), err)
	}
	for range 2 {
		if err := level.SetName("debug"); err != nil || level.Name() != "debug" {
			t.Error(level.Name(), err)
		}
	}
	text := out.String()
	for word, n := range map[string]int{`"hidden"`: 0, `"shown"`: 1, `"hidden too"`: 0, `"shown too"`: 1, `"log level"`: 6} {
		if strings.Count(text, word) != n {
			t.Errorf("%s is not %d times in\n%s", word, n, text)
		}
	}
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	slog.New(Text(&out, nil)).Info("x", "a", 1)
	if !strings.Contains(out.String(), "msg=x a=1\n") {
		t.Error(out.String())
	}
}
