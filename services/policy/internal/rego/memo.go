package rego

import (
	"errors"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// reads is what of the input a bundle looks at: members, by their canonical
// spelling, and what of each of them. A member without members is looked at
// whole.
type reads map[string]reads

// readsOf lists what modules look at; ok is false where they look at the input
// as a whole. What they only might look at counts.
func readsOf(modules map[string]*ast.Module) (r reads, ok bool) {
	r, ok = reads{}, true
	var v *ast.GenericVisitor
	v = ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case ast.Var: // alone, not as the head of a reference
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

// add notes a path of at most two names; false: it has none.
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
	case seen && sub == nil: // looked at whole already
	case seen:
		sub[second] = nil
	default:
		r[first] = reads{second: nil}
	}
	return true
}

// key appends what is read of doc, so that two documents with one key get one
// answer. The order of doc's members is the key's.
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

// memo keeps answers. An answer follows from the bundle and the input alone, and
// so from what the bundle reads of it: decisions that differ in nothing that the
// bundle looks at need no second evaluation.
type memo struct {
	reads reads
	ok    bool // false: the bundle looks at everything

	mu   sync.Mutex
	kept map[string]guard.Answer
}

// What is kept is bounded, and dropped whole when full.
const (
	maxAnswers   = 4096
	maxAnswerKey = 2 << 10
)

// get finds the answer to an input. Where it has to be worked out, put keeps it
// under the key; nil: it is not to be kept.
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
