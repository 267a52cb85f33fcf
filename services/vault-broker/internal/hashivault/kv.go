package hashivault

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/vault/api"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// KV stores values in Vault's key-value engine, under <prefix>/<folder>/<owner>/<name>. A
// value that is valid UTF-8 is the member "value" of the entry, so that it can be read
// and written with Vault's own tools; any other value is the member "value_base64", in
// base64. The members "type", "expires" and "overlap" are those of backend.About, the times in
// RFC 3339. An entry with the member "dynamic" names a path at which Vault issues
// credentials; the broker does not write such entries.
type KV struct {
	client *Client
	folder string
	kek    []byte // from which fingerprints are derived
}

// NewKV returns the backend in a folder of the client's prefix.
func NewKV(c *Client, folder string, kek []byte) *KV { return &KV{c, folder, kek} }

const (
	memberText    = "value"
	memberBase64  = "value_base64"
	memberDynamic = "dynamic"
	memberType    = "type"
	memberExpires = "expires"
	memberOverlap = "overlap"
)

// textOf returns the text of a time in an entry, "" for the zero time.
func textOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// aboutOf returns the description in the data of an entry. The error is for a malformed
// time, since a version whose end is not known must not count as valid for ever.
func aboutOf(data map[string]any) (a backend.About, err error) {
	a.Type, _ = data[memberType].(string)
	for member, t := range map[string]*time.Time{memberExpires: &a.Expires, memberOverlap: &a.Overlap} {
		v, given := data[member]
		if !given {
			continue
		}
		text, _ := v.(string)
		if *t, err = time.Parse(time.RFC3339, text); err != nil {
			return a, fmt.Errorf("the member %s is not a time of the form 2006-01-02T15:04:05Z", member)
		}
		*t = t.UTC()
	}
	return a, nil
}

// path returns the path of a name within the engine. Owner and name are tokens without a
// slash.
func (k *KV) path(owner, name string) string {
	return strings.Trim(k.client.cfg.Prefix+"/"+k.folder+"/"+owner+"/"+name, "/")
}

// do calls op with the engine.
func (k *KV) do(ctx context.Context, op func(ctx context.Context, kv *api.KVv2) error) error {
	return k.client.Do(ctx, func(ctx context.Context, a *api.Client) error { return op(ctx, a.KVv2(k.client.cfg.Mount)) })
}

// maxRaces is the maximum number of attempts of Put with backend.Any, and of Erase. An attempt
// fails if another writer stores a version at the same time.
const maxRaces = 20

// Put implements backend.Backend.
func (k *KV) Put(ctx context.Context, owner, name string, value []byte, about backend.About, expect int) (int, error) {
	for range maxRaces {
		m, err := k.metadata(ctx, owner, name)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return 0, err
		}
		newest := 0
		if m != nil {
			newest = m.CurrentVersion
		}
		switch {
		case expect != backend.Any && expect != newest:
			return 0, backend.ErrConflict
		case m != nil && destroyed(m, newest): // check-and-set accepts a version after a destroyed one
			return 0, backend.ErrErased
		}
		version, err := k.put(ctx, owner, name, value, about, newest)
		if err == nil && newest > 0 {
			err = k.after(ctx, owner, name, newest, version)
		}
		if expect != backend.Any || !errors.Is(err, backend.ErrConflict) {
			return version, err
		}
	}
	return 0, backend.ErrConflict
}

// after returns backend.ErrErased, and destroys a version that was just stored, if the
// version before it was destroyed meanwhile. Together with the repetition in Erase, a name
// thus has no readable version after Erase, whichever of the two ends first. If the
// versions cannot be read, the version may remain, and the error wraps
// backend.ErrUnavailable.
func (k *KV) after(ctx context.Context, owner, name string, before, version int) error {
	m, err := k.metadata(ctx, owner, name)
	if err != nil {
		return fmt.Errorf("%w: the version was stored, but not compared with the erasure of its name: %w", backend.ErrUnavailable, err)
	}
	if !destroyed(m, before) {
		return nil
	}
	err = k.do(ctx, func(ctx context.Context, kv *api.KVv2) error {
		return kv.Destroy(ctx, k.path(owner, name), []int{version})
	})
	if err != nil {
		return err
	}
	return backend.ErrErased
}

func (k *KV) put(ctx context.Context, owner, name string, value []byte, about backend.About, expect int) (version int, err error) {
	data := map[string]any{memberText: string(value)}
	if !utf8.Valid(value) {
		data = map[string]any{memberBase64: base64.StdEncoding.EncodeToString(value)}
	}
	for member, text := range map[string]string{memberType: about.Type, memberExpires: textOf(about.Expires), memberOverlap: textOf(about.Overlap)} {
		if text != "" {
			data[member] = text
		}
	}
	err = k.do(ctx, func(ctx context.Context, kv *api.KVv2) error {
		s, err := kv.Put(ctx, k.path(owner, name), data, api.WithCheckAndSet(expect))
		if err == nil && s.VersionMetadata != nil {
			version = s.VersionMetadata.Version
		}
		return err
	})
	if err == nil && version == 0 {
		err = fmt.Errorf("%w: the server named no version", backend.ErrUnavailable)
	}
	return version, err
}

// Get implements backend.Backend.
func (k *KV) Get(ctx context.Context, owner, name string, version int) (v backend.Value, err error) {
	var s *api.KVSecret
	err = k.do(ctx, func(ctx context.Context, kv *api.KVv2) (err error) {
		if version == 0 {
			s, err = kv.Get(ctx, k.path(owner, name))
		} else {
			s, err = kv.GetVersion(ctx, k.path(owner, name), version)
		}
		return err
	})
	if err != nil {
		return v, err
	}
	if m := s.VersionMetadata; m == nil || s.Data == nil {
		switch {
		case m == nil:
			return v, backend.ErrNotFound
		case m.Destroyed:
			return v, backend.ErrErased
		}
		return v, backend.ErrDeleted
	}
	v.Version, v.Created = s.VersionMetadata.Version, s.VersionMetadata.CreatedTime
	if v.Dynamic, _ = s.Data[memberDynamic].(string); v.Dynamic != "" {
		return v, nil
	}
	if v.About, err = aboutOf(s.Data); err == nil {
		v.Bytes, err = valueOf(s.Data)
	}
	if err != nil {
		return v, fmt.Errorf("%w: %s: %w", backend.ErrNotFound, k.path(owner, name), err)
	}
	v.Fingerprint, err = backend.Fingerprint(k.kek, owner, v.Bytes)
	return v, err
}

// valueOf returns the value in the data of an entry.
func valueOf(data map[string]any) ([]byte, error) {
	if text, ok := data[memberText].(string); ok {
		return []byte(text), nil
	}
	if text, ok := data[memberBase64].(string); ok {
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, errors.New("the member " + memberBase64 + " is not base64")
		}
		return b, nil
	}
	return nil, fmt.Errorf("the entry has none of the members %s, %s and %s", memberText, memberBase64, memberDynamic)
}

// metadata returns the description of a name's versions, or backend.ErrNotFound if the
// name has none.
func (k *KV) metadata(ctx context.Context, owner, name string) (m *api.KVMetadata, err error) {
	err = k.do(ctx, func(ctx context.Context, kv *api.KVv2) (err error) {
		m, err = kv.GetMetadata(ctx, k.path(owner, name))
		return err
	})
	if err == nil && m.CurrentVersion == 0 {
		return nil, backend.ErrNotFound
	}
	return m, err
}

// destroyed reports whether a version was destroyed.
func destroyed(m *api.KVMetadata, version int) bool {
	for _, v := range m.Versions {
		if v.Version == version {
			return v.Destroyed
		}
	}
	return false
}

// Newest implements backend.Backend.
func (k *KV) Newest(ctx context.Context, owner, name string) (int, error) {
	m, err := k.metadata(ctx, owner, name)
	if errors.Is(err, backend.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return m.CurrentVersion, nil
}

// each calls op with the numbers of all versions of a name that were not destroyed,
// ascending. It returns backend.ErrNotFound if the name has no version, and
// backend.ErrErased if the newest one was destroyed.
func (k *KV) each(ctx context.Context, owner, name string, op func(ctx context.Context, kv *api.KVv2, path string, versions []int) error) error {
	m, err := k.metadata(ctx, owner, name)
	if err != nil {
		return err
	}
	if destroyed(m, m.CurrentVersion) {
		return backend.ErrErased
	}
	var versions []int
	for _, v := range m.Versions {
		if !v.Destroyed {
			versions = append(versions, v.Version)
		}
	}
	slices.Sort(versions)
	return k.do(ctx, func(ctx context.Context, kv *api.KVv2) error { return op(ctx, kv, k.path(owner, name), versions) })
}

// Delete implements backend.Backend.
func (k *KV) Delete(ctx context.Context, owner, name string) error {
	return k.each(ctx, owner, name, func(ctx context.Context, kv *api.KVv2, path string, versions []int) error {
		return kv.DeleteVersions(ctx, path, versions)
	})
}

// Restore implements backend.Backend.
func (k *KV) Restore(ctx context.Context, owner, name string) error {
	return k.each(ctx, owner, name, func(ctx context.Context, kv *api.KVv2, path string, versions []int) error {
		return kv.Undelete(ctx, path, versions)
	})
}

// Erase implements backend.Backend. It repeats the destruction until the newest version is
// destroyed, because another writer may store a version meanwhile.
func (k *KV) Erase(ctx context.Context, owner, name string) error {
	for range maxRaces {
		if err := k.destroy(ctx, owner, name); errors.Is(err, backend.ErrErased) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: other writers store versions of the name all the time", backend.ErrConflict)
}

// destroy destroys the versions of a name, or returns backend.ErrErased if the newest one is
// destroyed.
func (k *KV) destroy(ctx context.Context, owner, name string) error {
	return k.each(ctx, owner, name, func(ctx context.Context, kv *api.KVv2, path string, versions []int) error {
		return kv.Destroy(ctx, path, versions)
	})
}

// Names implements backend.Backend.
func (k *KV) Names(ctx context.Context, owner string) (names []string, err error) {
	err = k.client.Do(ctx, func(ctx context.Context, a *api.Client) error {
		s, err := a.Logical().ListWithContext(ctx, k.client.cfg.Mount+"/metadata/"+k.path(owner, ""))
		if err != nil || s == nil {
			return err
		}
		names = nil
		keys, _ := s.Data["keys"].([]any)
		for _, key := range keys {
			if name, ok := key.(string); ok && !strings.HasSuffix(name, "/") {
				names = append(names, name)
			}
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}
