// Package logs sets up the log of a process, at a level that signals change while
// it runs.
package logs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// steps are the levels, from the fewest messages to the most.
var steps = []slog.Level{slog.LevelError, slog.LevelWarn, slog.LevelInfo, slog.LevelDebug}

// Parse reads the name of a level: debug, info, warn or error. An empty name is
// info.
func Parse(name string) (slog.Level, error) {
	if name == "" {
		return slog.LevelInfo, nil
	}
	for _, l := range steps {
		if strings.EqualFold(name, l.String()) {
			return l, nil
		}
	}
	return 0, fmt.Errorf("log level %q is none of debug, info, warn, error", name)
}

// JSON and Text are the forms of a log.
func JSON(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(w, o) }

// Text is the form for people to read.
func Text(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) }

// Start makes w the process's log, and changes its level by a step on each signal
// until ctx ends: SIGUSR1 for more messages, SIGUSR2 for fewer, between error and
// debug. A change is logged at every level.
func Start(ctx context.Context, w io.Writer, form func(io.Writer, *slog.HandlerOptions) slog.Handler, initial slog.Level) {
	level := &slog.LevelVar{}
	level.Set(initial)
	h := form(w, &slog.HandlerOptions{Level: level})
	slog.SetDefault(slog.New(h))
	received := make(chan os.Signal, 8)
	signal.Notify(received, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		defer signal.Stop(received)
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-received:
				change(ctx, h, level, s == syscall.SIGUSR1)
			}
		}
	}()
}

// change moves the level by a step and logs the change at any level.
func change(ctx context.Context, h slog.Handler, level *slog.LevelVar, more bool) {
	old := level.Level()
	level.Set(next(old, more))
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "log level", 0)
	r.AddAttrs(slog.String("was", old.String()), slog.String("is", level.Level().String()))
	_ = h.Handle(ctx, r) // a failure to write the log cannot be logged
}

// next is the level one step further, or the same at either end.
func next(l slog.Level, more bool) slog.Level {
	i := slices.Index(steps, l)
	if more {
		return steps[min(i+1, len(steps)-1)]
	}
	return steps[max(i-1, 0)]
}
