package rego

import (
	"errors"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// reads is the part of the input that a bundle reads: the names of members, in canonical
// form with quotes, each with the part of that member that is read. A nil map means that
// the whole member is read.
type reads map[string]reads

// readsOf returns the parts of the input that the modules read, including parts that
// they read only under conditions. ok is false if they use the input as a whole, or a
// member of it whose name is not constant.
func readsOf(modules map[string]*ast.Module) (r reads, ok bool) {
	r, ok = reads{}, true
	var v *ast.GenericVisitor
	v = ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case ast.Var: // a use of the input as a whole, if x is its name
			ok = ok && !x.Equal(ast.InputRootDocument.Value)
		case ast.Ref:
			if !x[0].Equal(ast.InputRootDocument) {
				return false
			}
			ok = r.add(x[1:]) && ok
			for _, t := range x[1:] {
				v.Walk(t)
			}
			return true
		}
		return false
	})
	for _, m := range modules {
		v.Walk(m)
	}
	return r, ok
}

// add records a path, up to its second name. It returns false if the first
// element is not a constant name.
func (r reads) add(path ast.Ref) bool {
	name := func(i int) (string, bool) {
		if i >= len(path) {
			return "", false
		}
		s, ok := path[i].Value.(ast.String)
		return string(canon.AppendString(nil, string(s))), ok
	}
	first, ok := name(0)
	if !ok {
		return false
	}
	sub, seen := r[first]
	second, ok := name(1)
	switch {
	case !ok:
		r[first] = nil
	case seen && sub == nil: // the whole member is read already
	case seen:
		sub[second] = nil
	default:
		r[first] = reads{second: nil}
	}
	return true
}

// key appends to dst the part of doc that is read, so that documents with the same key
// have the same answer. The order of members is that of doc. The error is that of
// canon.Members.
func (r reads) key(dst, doc []byte) ([]byte, error) {
	var inner error
	err := canon.Members(doc, func(name, value []byte) {
		sub, ok := r[string(name)]
		if !ok {
			return
		}
		dst = append(append(dst, name...), ':')
		if sub == nil || value[0] != '{' {
			dst = append(dst, value...)
		} else if dst, inner = sub.key(append(dst, '{'), value); inner == nil {
			dst = append(dst, '}')
		}
		dst = append(dst, ',')
	})
	return dst, errors.Join(err, inner)
}

// memo caches answers. An answer depends only on the bundle and on the part of
// the input that the bundle reads, so inputs that are equal in that part need no
// second evaluation. Decisions are never cached. A memo is safe for concurrent
// use.
type memo struct {
	reads reads
	ok    bool // false = the bundle may read the whole input, so no answer is cached

	mu   sync.Mutex
	kept map[string]guard.Answer
}

// The greatest number of cached answers, and the greatest length of a key in bytes. A
// full cache is emptied before the next answer is added.
const (
	maxAnswers   = 4096
	maxAnswerKey = 2 << 10
)

// get looks up the answer to an input. If it is not cached, the caller passes key
// to put after the evaluation; a nil key means that the answer must not be
// cached.
func (m *memo) get(doc []byte) (a guard.Answer, key []byte, ok bool) {
	if !m.ok {
		return a, nil, false
	}
	key, err := m.reads.key(make([]byte, 0, 512), doc)
	if err != nil || len(key) > maxAnswerKey {
		return a, nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok = m.kept[string(key)]
	return a, key, ok
}

// put caches an answer under the key that get returned. It does nothing for a nil key.
func (m *memo) put(key []byte, a guard.Answer) {
	if key == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil || len(m.kept) >= maxAnswers {
		m.kept = map[string]guard.Answer{}
	}
	m.kept[string(key)] = a
}
