// Package memory searches the entries that calls memory.store have stored, by full text. An
// index is a cache of artifacts: it is built from them when it is needed, and holds nothing
// else.
package memory

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode"

	_ "modernc.org/sqlite" // the driver, with its full-text index FTS5
)

// MaxEntries is the maximum number of entries of a principal in a namespace.
const MaxEntries = 1000

// maxSpaces is the maximum number of spaces whose indexes are in memory.
const maxSpaces = 16

// Entry is the content of the artifact that holds an entry, in JSON.
type Entry struct {
	Category  string   `json:"category"`
	Key       string   `json:"key"`
	Namespace string   `json:"namespace"`
	Tags      []string `json:"tags"`
	Value     string   `json:"value"`
}

// Space identifies the entries of a principal in a namespace that are about a data subject, given by
// its pseudonym, or about none if Subject is "".
type Space struct{ Tenant, Actor, Subject, Namespace string }

// Found is an entry that a search has found.
type Found struct {
	Entry
	Upload string  // of the artifact
	Score  float64 // greater is better; 0 if the search has no text
}

// Query is a search. An empty text, key, category or tag does not limit it.
type Query struct {
	Text     string // words, at least one of which occurs
	Key      string
	Category string
	Tag      string
	Limit    int // maximum number of entries that are found
}

// Index searches entries. The zero value is empty. It is safe for concurrent use.
type Index struct {
	mu     sync.Mutex
	spaces map[Space]*space
}

// space is the index of a Space.
type space struct {
	turn chan struct{} // has a value unless a search uses the fields below, except used
	db   *sql.DB
	shut bool            // db is closed
	have map[string]bool // uploads in db
	used time.Time       // set while Index.mu is held
}

// Close releases the resources of the index, once the searches that use it have ended. The
// index is then empty.
func (x *Index) Close() {
	x.mu.Lock()
	spaces := x.spaces
	x.spaces = nil
	x.mu.Unlock()
	for _, s := range spaces {
		s.close()
	}
}

// open returns the index of a space. If there are too many, it closes the one that was not
// used for the longest time.
func (x *Index) open(of Space) (*space, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.spaces[of]; s != nil {
		s.used = time.Now()
		return s, nil
	}
	if x.spaces == nil {
		x.spaces = map[Space]*space{}
	}
	if len(x.spaces) >= maxSpaces {
		var oldest Space
		for k, s := range x.spaces {
			if o := x.spaces[oldest]; o == nil || s.used.Before(o.used) {
				oldest = k
			}
		}
		go x.spaces[oldest].close()
		delete(x.spaces, oldest)
	}
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // each connection has a database of its own
	if _, err := db.Exec(`CREATE VIRTUAL TABLE entries USING fts5(key, value, category, tags, upload UNINDEXED, doc UNINDEXED, tokenize = 'porter unicode61')`); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s := &space{db: db, have: map[string]bool{}, used: time.Now(), turn: make(chan struct{}, 1)}
	s.leave()
	x.spaces[of] = s
	return s, nil
}

// enter returns the index of a space, which is not closed and which no other search uses until
// leave is called. It waits for other searches, which may load entries, until ctx ends.
func (x *Index) enter(ctx context.Context, of Space) (*space, error) {
	for {
		s, err := x.open(of)
		if err != nil {
			return nil, err
		}
		select {
		case <-s.turn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !s.shut {
			return s, nil
		}
		s.leave() // it was closed meanwhile
	}
}

// leave permits the next search.
func (s *space) leave() { s.turn <- struct{}{} }

// close closes the index after the search that uses it.
func (s *space) close() {
	<-s.turn
	defer s.leave()
	s.shut = true
	_ = s.db.Close()
}

// Search returns the entries of a space that match a query, the best first or, without text,
// the newest first. uploads are those of the space's entries, oldest first; load returns the
// content of one. Searches of one space are executed one after the other. If ctx ends while
// Search waits, it returns the error of ctx.
func (x *Index) Search(ctx context.Context, of Space, uploads []string, load func(ctx context.Context, upload string) (Entry, error), q Query) ([]Found, error) {
	s, err := x.enter(ctx, of)
	if err != nil {
		return nil, err
	}
	defer s.leave()
	if err := s.sync(ctx, uploads, load); err != nil {
		return nil, err
	}
	where, args := []string{"1"}, []any{}
	score, order := "0.0", "rowid DESC"
	if words := terms(q.Text); words != "" {
		where, args = append(where, "entries MATCH ?"), append(args, words)
		score, order = "-bm25(entries)", "rank"
	} else if q.Text != "" {
		return nil, nil // it has no word
	}
	for column, value := range map[string]string{"key": q.Key, "category": q.Category} {
		if value != "" {
			where, args = append(where, column+" = ?"), append(args, value)
		}
	}
	if q.Tag != "" {
		where, args = append(where, `EXISTS (SELECT 1 FROM json_each(doc, '$.tags') WHERE json_each.value = ?)`), append(args, q.Tag)
	}
	rows, err := s.db.QueryContext(ctx, `SELECT upload, doc, `+score+` FROM entries WHERE `+strings.Join(where, " AND ")+` ORDER BY `+order+` LIMIT ?`, append(args, q.Limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Found
	for rows.Next() {
		var f Found
		var doc string
		if err := rows.Scan(&f.Upload, &doc, &f.Score); err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(doc), &f.Entry); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, rows.Err()
}

// sync adds the entries that the index lacks, and removes those that no longer exist. The
// caller must have entered the space.
func (s *space) sync(ctx context.Context, uploads []string, load func(context.Context, string) (Entry, error)) error {
	now := map[string]bool{}
	for _, u := range uploads {
		now[u] = true
	}
	for u := range s.have {
		if now[u] {
			continue
		}
		if _, err := s.db.ExecContext(ctx, `DELETE FROM entries WHERE upload = ?`, u); err != nil {
			return err
		}
		delete(s.have, u)
	}
	for _, u := range uploads {
		if s.have[u] {
			continue
		}
		e, err := load(ctx, u)
		if err != nil {
			return err
		}
		doc, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if _, err := s.db.ExecContext(ctx, `INSERT INTO entries (key, value, category, tags, upload, doc) VALUES (?, ?, ?, ?, ?, ?)`, e.Key, e.Value, e.Category, strings.Join(e.Tags, " "), u, string(doc)); err != nil {
			return err
		}
		s.have[u] = true
	}
	return nil
}

// terms returns an expression of FTS5 that matches entries with at least one of the first 64
// words of a text. Operators of FTS5 in the text have no effect.
func terms(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for i, w := range words {
		words[i] = `"` + w + `"`
	}
	return strings.Join(words[:min(len(words), 64)], " OR ")
}
