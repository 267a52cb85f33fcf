package durable_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/durable"
)

// TestHandler shows before which parts of a response the handler waits, and what the
// client receives if a wait fails.
func TestHandler(t *testing.T) {
	stream := func(parts ...string) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Response().WriteHeader(http.StatusOK)
			c.Response().Flush()
			for _, p := range parts {
				if strings.HasPrefix(p, "frame") {
					durable.Known(c)
				}
				if _, err := c.Response().Write([]byte(p)); err != nil {
					return err
				}
				c.Response().Flush()
			}
			return nil
		}
	}
	document := func(c echo.Context) error { return c.JSON(http.StatusCreated, map[string]int{"n": 1}) }
	for name, c := range map[string]struct {
		handle  echo.HandlerFunc
		fail    int // number of the wait that fails, from 1; 0 for none
		waits   int
		status  int
		body    string
		aborted bool
	}{
		"document":                {document, 0, 1, 201, `{"n":1}`, false},
		"document not durable":    {document, 1, 1, 503, `"code":"unavailable"`, false},
		"error":                   {func(echo.Context) error { return echo.ErrNotFound }, 0, 1, 404, "Not Found", false},
		"error not durable":       {func(echo.Context) error { return echo.ErrNotFound }, 1, 1, 503, `{"error":`, false},
		"no content":              {func(c echo.Context) error { return c.NoContent(http.StatusNoContent) }, 1, 1, 503, "synced", false},
		"lines":                   {stream("a", "b"), 0, 3, 200, "ab", false},
		"lines not durable":       {stream("a", "b"), 3, 3, 200, "a", true},
		"stream not durable":      {stream("a", "b"), 1, 1, 503, "unavailable", false},
		"frames":                  {stream("frame1", "frame2", "end"), 0, 2, 200, "frame1frame2end", false},
		"frames, end not durable": {stream("frame1", "frame2", "end"), 2, 2, 200, "frame1frame2", true},
	} {
		t.Run(name, func(t *testing.T) {
			var waits atomic.Int64 // the handler of an aborted connection may still run
			e := echo.New()
			e.GET("/", durable.Handler(func(context.Context) error {
				if waits.Add(1) == int64(c.fail) {
					return errors.New("not synced to disk")
				}
				return nil
			}, c.handle))
			srv := httptest.NewServer(e)
			defer srv.Close()
			r, err := http.Get(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			if (err != nil) != c.aborted || r.StatusCode != c.status || !strings.Contains(string(b), c.body) || strings.Contains(string(b), "Not Found") && c.status == 503 || waits.Load() != int64(c.waits) {
				t.Errorf("%d %s %v after %d waits", r.StatusCode, b, err, waits.Load())
			}
			if c.status == http.StatusServiceUnavailable && (r.Header.Get("Retry-After") == "" || r.Header.Get("Content-Type") != echo.MIMEApplicationJSON) {
				t.Error(r.Header)
			}
		})
	}
}
