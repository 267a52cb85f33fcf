package store

import (
	"context"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// Backend returns the store as a backend.Backend. Methods of the store and of the backend
// may be used together.
func (s *Store) Backend() backend.Backend { return file{s} }

// file implements backend.Backend.
type file struct{ s *Store }

// Put implements backend.Backend.
func (f file) Put(_ context.Context, owner, name string, value []byte, about backend.About, expect int) (int, error) {
	return f.s.put(owner+"/"+name, value, about, expect)
}

// Get implements backend.Backend.
func (f file) Get(_ context.Context, owner, name string, version int) (v backend.Value, err error) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	full := owner + "/" + name
	newest, ok := f.s.data[full]
	if !ok {
		return v, backend.ErrNotFound
	}
	for _, r := range append([]record{newest}, newest.Older...) {
		if version != 0 && r.number() != version {
			continue
		}
		switch {
		case newest.Erased:
			return v, backend.ErrErased
		case r.Deleted:
			return v, backend.ErrDeleted
		}
		return f.s.version(full, &r)
	}
	if newest.Erased && version < newest.number() {
		return v, backend.ErrErased
	}
	return v, backend.ErrNotFound
}

// version returns the value in a record of a name, with its fingerprint.
func (s *Store) version(name string, r *record) (v backend.Value, err error) {
	if v.Bytes, err = s.open(name, r); err != nil {
		return v, err
	}
	v.About, v.Version, v.Created = r.about(), r.number(), r.Created
	if v.Created.IsZero() {
		v.Created = time.Unix(0, 0).UTC() // stored by a release up to 0.5, which did not record the time
	}
	if !r.Bound {
		v.Fingerprint = backend.FingerprintUnder(s.hmac, v.Bytes)
		return v, nil
	}
	v.Fingerprint, err = s.Fingerprint(name, v.Bytes)
	return v, err
}

// Newest implements backend.Backend.
func (f file) Newest(_ context.Context, owner, name string) (int, error) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	r, ok := f.s.data[owner+"/"+name]
	if !ok {
		return 0, nil
	}
	return r.number(), nil
}

// Delete implements backend.Backend.
func (f file) Delete(_ context.Context, owner, name string) error {
	return f.mark(owner, name, true)
}

// Restore implements backend.Backend.
func (f file) Restore(_ context.Context, owner, name string) error {
	return f.mark(owner, name, false)
}

// mark makes all versions of a name unreadable, or readable again. It returns
// backend.ErrNotFound for a name without a value, and backend.ErrErased for an erased one.
func (f file) mark(owner, name string, deleted bool) error {
	return f.s.change(func(data map[string]record) error {
		r, ok := data[owner+"/"+name]
		switch {
		case !ok:
			return backend.ErrNotFound
		case r.Erased:
			return backend.ErrErased
		}
		r.Deleted = deleted
		older := make([]record, len(r.Older))
		for i, o := range r.Older {
			o.Deleted = deleted
			older[i] = o
		}
		r.Older = older
		data[owner+"/"+name] = r
		return nil
	})
}

// Erase implements backend.Backend. An encrypted empty value with the number of the newest version
// replaces all versions.
func (f file) Erase(_ context.Context, owner, name string) error {
	return f.s.change(func(data map[string]record) error {
		full := owner + "/" + name
		old, ok := data[full]
		if !ok {
			return backend.ErrNotFound
		}
		r, err := f.s.seal(full, old.number(), nil, backend.About{})
		if err != nil {
			return err
		}
		r.Erased, r.Bound, r.Created = true, true, old.Created
		data[full] = r
		return nil
	})
}

// Names implements backend.Backend.
func (f file) Names(_ context.Context, owner string) ([]string, error) {
	names := f.s.Names(owner + "/")
	for i := range names {
		names[i] = strings.TrimPrefix(names[i], owner+"/")
	}
	return names, nil
}
