package cli

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

const trustUsage = "init | sign CEILINGS.json | list [--at LAMPORT] | add approval|bundle|witness NAME [--public KEY] | rotate SERVICE|root | revoke KID | public SEEDFILE"

// trustCmd works on the ring's files, offline, except list. What it changes it
// also distributes, where --distribute or BINNACLE_DISTRIBUTE names a folder.
func trustCmd(ctx context.Context, c *env) error {
	keys := c.fs.String("keys", "", "folder of keys (default DATA/keys)")
	public := c.fs.String("public", "", "public key in base64, for add; empty = make one")
	at := c.fs.String("at", "", "lamport, for list")
	to := distributeFlag(c.fs)
	verb, rest, err := c.verb(trustUsage)
	if err != nil {
		return err
	}
	switch {
	case verb == "list" && len(rest) == 0:
		return c.listKeys(ctx, *at)
	case verb == "init" && len(rest) == 0:
		return makeKeys(c, *to)
	case verb == "public" && len(rest) == 1:
		return publicOf(c, rest[0])
	}
	if *keys == "" {
		*keys = filepath.Join(*c.data, "keys")
	}
	ring, err := keyring.Open(*keys)
	if err != nil {
		return err
	}
	switch {
	case verb == "sign" && len(rest) == 1:
		err = signCeilings(c, ring, rest[0])
	case verb == "add" && len(rest) == 2:
		var pub []byte
		if pub, err = keyring.PublicKey(*public); err != nil {
			return fail(exitUsage, "%v", err)
		}
		err = c.kid(ring.AddKey(rest[0], rest[1], pub))
	case verb == "rotate" && len(rest) == 1 && rest[0] == "root":
		err = c.kid(ring.RotateRoot())
	case verb == "rotate" && len(rest) == 1:
		err = c.kid(ring.Rotate(rest[0]))
	case verb == "revoke" && len(rest) == 1:
		err = c.kid(rest[0], ring.Revoke(rest[0]))
	default:
		return fail(exitUsage, "usage: binnacle trust %s", trustUsage)
	}
	if err != nil {
		return err
	}
	return distribute(ring, *to)
}

// signCeilings signs a P0 document and puts it into the ring.
func signCeilings(c *env, ring *keyring.Ring, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	ceilings := keyring.DefaultCeilings
	if err := strictJSON(b, &ceilings); err != nil {
		return fail(exitUsage, "%s: %v", file, err)
	}
	doc, err := ring.SignP0(ceilings)
	if err != nil {
		return fail(exitUsage, "%s: %v", file, err)
	}
	digest := sign.Digest(doc)
	return c.print(map[string]string{"file": ring.Path("p0.json"), "digest": digest}, func() {
		fmt.Fprintf(c.out, "signed %s\n%s\nput it in force with `binnacle policy activate --layer p0 %s`, or by restarting policy\n", ring.Path("p0.json"), digest, ring.Path("p0.json"))
	})
}

// publicOf prints the public half of a seed file, in base64.
func publicOf(c *env, file string) error {
	seed, err := keyring.ReadSeed(file)
	if err != nil {
		return err
	}
	pub := base64.StdEncoding.EncodeToString(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
	return c.print(map[string]string{"public_key": pub}, func() { fmt.Fprintln(c.out, pub) })
}

func (c *env) kid(kid string, err error) error {
	if err != nil {
		return err
	}
	return c.print(map[string]string{"kid": kid}, func() { fmt.Fprintln(c.out, kid) })
}

func (c *env) listKeys(ctx context.Context, at string) error {
	path := "/api/v1/trust/keys"
	if at != "" {
		path += "?at=" + url.QueryEscape(at)
	}
	var keys []struct {
		KID          string   `json:"kid"`
		Owner        string   `json:"owner"`
		Uses         []string `json:"uses"`
		SignerKID    string   `json:"signer_kid"`
		Since        uint64   `json:"since_lamport"`
		RevokedSince uint64   `json:"revoked_since_lamport,omitempty"`
		Valid        bool     `json:"valid"`
	}
	if err := c.get(ctx, path, &keys); err != nil {
		return err
	}
	return c.print(keys, func() {
		for _, k := range keys {
			state := "valid"
			if !k.Valid {
				state = "not valid"
			}
			fmt.Fprintf(c.out, "%s  %-20s %-32s since %-8d %s\n", k.KID, k.Owner, strings.Join(k.Uses, ","), k.Since, state)
		}
	})
}
