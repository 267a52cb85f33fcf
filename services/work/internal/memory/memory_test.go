package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// store holds entries by upload.
type store struct {
	entries map[string]Entry
	loads   int
}

func (s *store) load(_ context.Context, upload string) (Entry, error) {
	s.loads++
	e, ok := s.entries[upload]
	if !ok {
		return e, errors.New("no such upload")
	}
	return e, nil
}

// keys returns the keys of the entries that a search found.
func keys(found []Found) string {
	var out []string
	for _, f := range found {
		out = append(out, f.Key)
	}
	return strings.Join(out, " ")
}

// TestSearch checks which entries are found by words in any form, by key, category and tag;
// that operators of FTS5 in a text have no effect; and that the index has the entries in the
// list of uploads, and loads each once.
func TestSearch(t *testing.T) {
	s := &store{entries: map[string]Entry{
		"u-1": {Key: "tides", Value: "The tide rises twice a day", Category: "fact", Tags: []string{"sea", "a moon"}},
		"u-2": {Key: "winds", Value: "Trade winds blow from the east", Category: "fact"},
		"u-3": {Key: "style", Value: "Ann prefers short answers about tides, tides and tides", Category: "preference", Tags: []string{"ann"}},
	}}
	var x Index
	of := Space{"t", "ann", "", "default"}
	all := []string{"u-1", "u-2", "u-3"}
	search := func(uploads []string, q Query) string {
		t.Helper()
		if q.Limit == 0 {
			q.Limit = 10
		}
		found, err := x.Search(t.Context(), of, uploads, s.load, q)
		if err != nil {
			t.Fatal(err)
		}
		return keys(found)
	}
	for q, want := range map[Query]string{
		{}:                             "style winds tides",
		{Limit: 1}:                     "style",
		{Text: "rising"}:               "tides",
		{Text: "blowing EAST"}:         "winds",
		{Text: "nothing"}:              "",
		{Text: "?!"}:                   "",
		{Text: `" NEAR( tide" OR -*`}:  "style tides",
		{Key: "winds"}:                 "winds",
		{Category: "preference"}:       "style",
		{Text: "tide", Tag: "a moon"}:  "tides",
		{Tag: "moon"}:                  "",
		{Text: "tide", Key: "winds"}:   "",
		{Text: "' OR 1=1; DROP TABLE"}: "",
	} {
		if got := search(all, q); got != want {
			t.Errorf("%+v: %q, want %q", q, got, want)
		}
	}
	if s.loads != 3 {
		t.Errorf("%d loads, want 3", s.loads)
	}
	if got := search([]string{"u-2", "u-3"}, Query{Text: "tide"}); got != "style" {
		t.Errorf("after a removal: %q", got)
	}
	if _, err := x.Search(t.Context(), of, []string{"u-4"}, s.load, Query{Limit: 1}); err == nil {
		t.Error("an entry that cannot be read is ignored")
	}
}

// TestSpaces checks that the number of indexes is limited, and that an index that was closed
// is built again.
func TestSpaces(t *testing.T) {
	s := &store{entries: map[string]Entry{"u-1": {Key: "one", Value: "secret"}}}
	var x Index
	for i := range maxSpaces + 10 {
		found, err := x.Search(t.Context(), Space{fmt.Sprint("t", i), "ann", "", "default"}, nil, s.load, Query{Text: "secret", Limit: 9})
		if err != nil || len(found) != 0 {
			t.Fatal(found, err)
		}
	}
	if len(x.spaces) != maxSpaces {
		t.Errorf("%d indexes", len(x.spaces))
	}
	for range 2 {
		found, err := x.Search(t.Context(), Space{"t0", "ann", "", "default"}, []string{"u-1"}, s.load, Query{Text: "secret", Limit: 9})
		if err != nil || keys(found) != "one" || found[0].Score <= 0 {
			t.Fatal(found, err)
		}
	}
}

// TestTurns checks that a search that waits for another one of its space ends with its context,
// and that Close waits for the search that uses an index.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x Index
		of := Space{"t", "ann", "", "default"}
		loading := make(chan struct{})
		var first error
		go func() {
			_, first = x.Search(t.Context(), of, []string{"u-1"}, func(context.Context, string) (Entry, error) {
				<-loading
				return Entry{Key: "one"}, nil
			}, Query{Limit: 9})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := x.Search(ctx, of, nil, nil, Query{Limit: 9}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while another search loads entries: %v", err)
		}
		closed := false
		go func() { x.Close(); closed = true }()
		synctest.Wait()
		if closed {
			t.Error("Close does not wait for the search")
		}
		close(loading)
		synctest.Wait()
		if first != nil || !closed || len(x.spaces) != 0 {
			t.Errorf("the search: %v; closed: %v, with %d indexes", first, closed, len(x.spaces))
		}
	})
}
