package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// object is a JSON object that preserves the order of its members and the bytes of their
// values.
type object struct {
	keys []string
	vals map[string]json.RawMessage
}

// looked lists the names of members that a lax parser must not be able to confuse with
// other members. An object is rejected if the name of one of its members differs from
// one of these names only in case.
var looked = []string{"choices", "message", "delta", "tool_calls", "function_call", "finish_reason", "index", "model", "stream", "tools",
	"output", "response", "item", "output_index", "type", "name", "arguments", "input", "call_id"}

// parse parses a JSON object. It returns an error if b is not exactly one JSON object,
// if it is nested deeper than canon.MaxDepth, or if the object has duplicate members or
// members that could be confused with one in looked. The members of nested objects are
// not compared.
func parse(b []byte) (*object, error) {
	if err := canon.CheckDepth(b); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil {
		return nil, errors.New("not JSON")
	} else if t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	o := &object{vals: map[string]json.RawMessage{}}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, errors.New("not JSON")
		}
		key := t.(string)
		if _, twice := o.vals[key]; twice {
			return nil, fmt.Errorf("duplicate member %q", key)
		}
		for _, k := range looked {
			if k != key && strings.EqualFold(k, key) {
				return nil, fmt.Errorf("member %q can be taken for %q", key, k)
			}
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, errors.New("not JSON")
		}
		o.set(key, raw)
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("not JSON")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("data after the JSON object")
	}
	return o, nil
}

func (o *object) set(key string, v json.RawMessage) {
	if _, ok := o.vals[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.vals[key] = v
}

// put sets a member to the JSON encoding of v.
func (o *object) put(key string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // encodes strings and types of this package only, so it cannot fail
	}
	o.set(key, b)
}

func (o *object) del(key string) {
	delete(o.vals, key)
	o.keys = slices.DeleteFunc(o.keys, func(k string) bool { return k == key })
}

// has reports whether the object has the member with a value other than null.
func (o *object) has(key string) bool {
	v, ok := o.vals[key]
	return ok && string(v) != "null"
}

// get decodes a member into v. If the member is absent or null, v is unchanged.
func (o *object) get(key string, v any) error {
	if !o.has(key) {
		return nil
	}
	return json.Unmarshal(o.vals[key], v)
}

// sub returns the member key, which must be an object, or nil if it is absent or null.
func (o *object) sub(key string) (*object, error) {
	if !o.has(key) {
		return nil, nil
	}
	s, err := parse(o.vals[key])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return s, nil
}

// list returns the member key, which must be a list of objects. The list is empty if the
// member is absent or null.
func (o *object) list(key string) ([]*object, error) {
	var raw []json.RawMessage
	if err := o.get(key, &raw); err != nil {
		return nil, fmt.Errorf("%s: not a list", key)
	}
	out := make([]*object, len(raw))
	for i, r := range raw {
		var err error
		if out[i], err = parse(r); err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", key, i, err)
		}
	}
	return out, nil
}

func (o *object) putList(key string, list []*object) {
	b := []byte{'['}
	for i, x := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = x.append(b)
	}
	o.set(key, append(b, ']'))
}

// append appends the JSON encoding of the object to b, with the members in their order
// and the bytes of their values unchanged.
func (o *object) append(b []byte) []byte {
	b = append(b, '{')
	for i, k := range o.keys {
		if i > 0 {
			b = append(b, ',')
		}
		key, err := json.Marshal(k)
		if err != nil {
			panic(err) // a string can always be encoded
		}
		b = append(append(append(b, key...), ':'), o.vals[k]...)
	}
	return append(b, '}')
}

// clone returns a copy. Setting members of the copy does not change the original.
func (o *object) clone() *object {
	c := &object{keys: slices.Clone(o.keys), vals: map[string]json.RawMessage{}}
	for k, v := range o.vals {
		c.vals[k] = v
	}
	return c
}
