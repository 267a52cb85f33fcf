package acme

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// logCore writes what certmagic logs to a logger of the gateway. The lines that certmagic logs for
// information, several for each attempt, have the level debug.
type logCore struct {
	to    *slog.Logger
	attrs []slog.Attr
}

func levelOf(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// Enabled implements zapcore.Core.
func (c *logCore) Enabled(l zapcore.Level) bool {
	return c.to.Enabled(context.Background(), levelOf(l))
}

// With implements zapcore.Core.
func (c *logCore) With(fields []zapcore.Field) zapcore.Core {
	return &logCore{c.to, append(c.attrs[:len(c.attrs):len(c.attrs)], attrsOf(fields)...)}
}

// Check implements zapcore.Core.
func (c *logCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c *logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.to.LogAttrs(context.Background(), levelOf(e.Level), "acme: "+e.Message, append(c.attrs[:len(c.attrs):len(c.attrs)], attrsOf(fields)...)...)
	return nil
}

// Sync implements zapcore.Core.
func (*logCore) Sync() error { return nil }

func attrsOf(fields []zapcore.Field) []slog.Attr {
	out := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(out)
	}
	attrs := make([]slog.Attr, 0, len(out.Fields))
	for _, f := range fields {
		if v, ok := out.Fields[f.Key]; ok {
			attrs = append(attrs, slog.Any(f.Key, v))
		}
	}
	return attrs
}
