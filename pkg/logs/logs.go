// Package logs sets up the log of a process. Signals and Level.SetName change its level
// while the process runs.
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

// steps are the levels in the order in which signals change them, from the fewest
// messages to the most.
var steps = []slog.Level{slog.LevelError, slog.LevelWarn, slog.LevelInfo, slog.LevelDebug}

// Parse returns the level of a name: debug, info, warn or error, in any case. An empty
// name means info.
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

// JSON returns a handler that writes the log as JSON lines.
func JSON(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(w, o) }

// Text returns a handler that writes the log as text, for people to read.
func Text(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) }

// Level is the level of a process's log. It is safe for concurrent use.
type Level struct {
	at      slog.LevelVar
	handler slog.Handler
}

// Start makes w the log of the process (slog.Default), with the given initial level. The
// returned Level reports and changes the level. form creates the log's handler: JSON,
// Text or a similar function. Until ctx is done, each SIGUSR1 changes the level by one
// step to more messages, and each SIGUSR2 to fewer, between error and debug. Every
// change is logged, even at level error.
func Start(ctx context.Context, w io.Writer, form func(io.Writer, *slog.HandlerOptions) slog.Handler, initial slog.Level) *Level {
	l := &Level{}
	l.at.Set(initial)
	l.handler = form(w, &slog.HandlerOptions{Level: &l.at})
	slog.SetDefault(slog.New(l.handler))
	received := make(chan os.Signal, 8)
	signal.Notify(received, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		defer signal.Stop(received)
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-received:
				l.set(next(l.at.Level(), s == syscall.SIGUSR1))
			}
		}
	}()
	return l
}

// Name returns the name of the level, as Parse accepts it.
func (l *Level) Name() string { return strings.ToLower(l.at.Level().String()) }

// SetName sets the level by its name. A change is logged, even at level error; if the
// level is set already, SetName does nothing. Its error is that of Parse.
func (l *Level) SetName(name string) error {
	to, err := Parse(name)
	if err == nil && to != l.at.Level() {
		l.set(to)
	}
	return err
}

// set sets the level and logs the change, even at level error.
func (l *Level) set(to slog.Level) {
	old := l.at.Level()
	l.at.Set(to)
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "log level", 0)
	r.AddAttrs(slog.String("was", old.String()), slog.String("is", to.String()))
	_ = l.handler.Handle(context.Background(), r) // a failure to write the log cannot be logged
}

// next returns the level that follows l in steps if more is true, and the one before it
// otherwise. At either end of steps it returns l.
func next(l slog.Level, more bool) slog.Level {
	i := slices.Index(steps, l)
	if more {
		return steps[min(i+1, len(steps)-1)]
	}
	return steps[max(i-1, 0)]
}
