// Package secrettype checks that the value of a secret has the form of its type. It is pure.
// No error contains a part of a value.
package secrettype

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// Types of secrets.
const (
	APIKey      = "api_key"     // one line of printable ASCII
	Certificate = "certificate" // PEM blocks: a chain of certificates and the private key of the first
	Cookie      = "cookie"      // JSON object: name, value, and domain; optional path
	File        = "file"        // any bytes
	Login       = "login"       // JSON object: username and password; optional url
	SSH         = "ssh"         // private key without a passphrase, in PEM
)

// types has the check of each type.
var types = map[string]func(value []byte) (end time.Time, err error){
	APIKey:      apiKey,
	Certificate: certificate,
	Cookie: func(v []byte) (time.Time, error) {
		return time.Time{}, object(v, []string{"name", "value", "domain"}, []string{"path"})
	},
	File: func([]byte) (time.Time, error) { return time.Time{}, nil },
	Login: func(v []byte) (time.Time, error) {
		return time.Time{}, object(v, []string{"username", "password"}, []string{"url"})
	},
	OAuth: func(v []byte) (time.Time, error) {
		_, err := ParseOAuth(v)
		return time.Time{}, err
	},
	SSH: sshKey,
}

// Names returns the names of the types, sorted.
func Names() []string {
	var out []string
	for name := range types {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Check returns an error if there is no type with this name, or if value does not have the
// form of the type. end is the time at which the value itself ceases to be valid, or zero if
// the value contains no such time.
func Check(name string, value []byte) (end time.Time, err error) {
	check, ok := types[name]
	if !ok {
		return end, fmt.Errorf("type: the types of secrets are %s", strings.Join(Names(), ", "))
	}
	if end, err = check(value); err != nil {
		return end, fmt.Errorf("value: a secret of type %s %w", name, err)
	}
	return end, nil
}

func apiKey(v []byte) (end time.Time, err error) {
	if len(v) == 0 || slices.ContainsFunc(v, func(b byte) bool { return b <= ' ' || b > '~' }) {
		err = errors.New("is one line of printable ASCII without spaces")
	}
	return end, err
}

// object returns an error unless v is a JSON object of strings that has all members of
// required, which are not empty, and no others than these and optional.
func object(v []byte, required, optional []string) error {
	form := errors.New("is a JSON object of strings with the members " + strings.Join(required, ", ") + ", and optionally " + strings.Join(optional, ", "))
	var doc map[string]*string
	if json.Unmarshal(v, &doc) != nil || len(doc) == 0 {
		return form
	}
	for _, name := range required {
		if s := doc[name]; s == nil || *s == "" {
			return form
		}
	}
	for name, s := range doc {
		if s == nil || !slices.Contains(required, name) && !slices.Contains(optional, name) {
			return form
		}
	}
	return nil
}

func sshKey(v []byte) (end time.Time, err error) {
	if _, bad := ssh.ParseRawPrivateKey(v); bad != nil {
		err = errors.New("is a private key in PEM without a passphrase, as ssh-keygen writes it")
	}
	return end, err
}

// certificate returns the time at which the first certificate of the chain to become invalid
// does so.
func certificate(v []byte) (end time.Time, err error) {
	pair, bad := tls.X509KeyPair(v, v)
	if bad != nil {
		return end, errors.New("consists of PEM blocks: a chain of certificates, and the private key of the first")
	}
	end = pair.Leaf.NotAfter
	for _, raw := range pair.Certificate[1:] {
		c, bad := x509.ParseCertificate(raw)
		if bad != nil {
			return time.Time{}, errors.New("has a certificate in its chain that cannot be parsed")
		}
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end.UTC().Truncate(time.Second), nil
}
