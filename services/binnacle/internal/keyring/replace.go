package keyring

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Names of the keys that Replace and Retire take, besides that of one NATS identity, which is
// NATSKey, a slash and the identity.
const (
	TokenKey   = "token"   // signs the tokens of `binnacle token create`
	WebhookKey = "webhook" // signs notices to webhooks
	SealingKey = "seal"    // opens values that are sealed to the vault-broker
	NATSKey    = "nats"    // all NATS identities
)

// Files of keys that can be replaced. Each of the first three has the current key in its first
// line, and the former one in its second line until Retire removes it.
const (
	tokenPublic = "token.pub"
	tokenSeed   = "token.seed"
	webhookSeed = "webhook.seed"
	sealSeed    = "vault.seal"
	formerEnd   = ".former" // <identity>.nkey.former has the public key of the former NATS identity
)

// identities lists the NATS identities of a ring.
func identities() []string {
	return append([]string{services.Provision, bus.MirrorKeeper, bus.MirrorAuditor}, services.Names()...)
}

// Replaceable lists the names that Replace takes.
func Replaceable() []string {
	out := []string{NATSKey, SealingKey, TokenKey, WebhookKey}
	for _, i := range identities() {
		out = append(out, NATSKey+"/"+i)
	}
	return out
}

// Replace makes a new key in place of the one with a name of Replaceable, and returns an id of
// the new key: the public key of one NATS identity, the key id of the sealing key, or name. Both
// keys are valid until Retire is called. Replace returns an error for another name, and if the
// key before the current one was not retired.
func Replace(r *Ring, name string) (id string, err error) {
	switch identity, one := strings.CutPrefix(name, NATSKey+"/"); {
	case one && slices.Contains(identities(), identity):
		return replaceNKey(r, identity)
	case name == NATSKey:
		return name, replaceNKeys(r)
	case name == WebhookKey:
		_, err := replaceSeed(r, webhookSeed)
		return name, err
	case name == TokenKey:
		return name, replaceToken(r)
	case name == SealingKey:
		return replaceSealing(r)
	}
	return "", fmt.Errorf("key %q: want one of %s", name, strings.Join(Replaceable(), ", "))
}

// Retire ends the validity of the key that Replace has replaced. It is an error if there is none.
func Retire(r *Ring, name string) error {
	identity, one := strings.CutPrefix(name, NATSKey+"/")
	if one && slices.Contains(identities(), identity) {
		err := os.Remove(r.Path(identity + nkeyEnd + formerEnd))
		if errors.Is(err, fs.ErrNotExist) {
			return noFormer(name)
		}
		return err
	}
	if name == NATSKey {
		return retireNKeys(r)
	}
	file := map[string]string{TokenKey: tokenPublic, WebhookKey: webhookSeed, SealingKey: sealSeed}[name]
	if file == "" {
		return fmt.Errorf("key %q: want one of %s", name, strings.Join(Replaceable(), ", "))
	}
	lines, err := lines(r, file)
	if err != nil {
		return err
	}
	if len(lines) < 2 {
		return noFormer(name)
	}
	if name == SealingKey {
		if err := revokeSealing(r, lines[1]); err != nil {
			return err
		}
	}
	return r.write(file, []byte(lines[0]+"\n"))
}

// revokeSealing revokes the sealing key with a seed in hex, unless it is revoked.
func revokeSealing(r *Ring, line string) error {
	seed, err := run.ParseSeed(r.Path(sealSeed), line)
	if err != nil {
		return err
	}
	doc, err := sealingDoc(seed, "")
	if err != nil {
		return err
	}
	docs, err := r.Trust()
	if err != nil || slices.ContainsFunc(docs, func(d contract.TrustKey) bool { return d.KID == doc.KID && d.Revoked }) {
		return err
	}
	return r.Revoke(doc.KID)
}

// sealingDoc returns the unsigned trust document of the sealing key with a seed.
func sealingDoc(seed []byte, tenant string) (contract.TrustKey, error) {
	k, err := seal.FromSeed(seed)
	if err != nil {
		return contract.TrustKey{}, err
	}
	public, err := base64.StdEncoding.DecodeString(k.Public())
	return publicDoc(public, services.VaultBroker, sealAlgorithm, tenant, contract.UseSeal), err
}

func noFormer(name string) error { return fmt.Errorf("key %s has no former key to retire", name) }

// unretired returns the error of Replace for a key whose former key is still valid.
func unretired(name string) error {
	return fmt.Errorf("the former key of %s is still valid; end it with `binnacle trust retire %s`", name, name)
}

// lines returns the lines of a file of the ring.
func lines(r *Ring, file string) ([]string, error) {
	b, err := os.ReadFile(r.Path(file))
	return strings.Fields(string(b)), err
}

// replaceSeed makes a new seed, puts it before the current one in a file, and returns it.
func replaceSeed(r *Ring, file string) ([]byte, error) {
	lines, err := lines(r, file)
	if err != nil {
		return nil, err
	}
	if len(lines) > 1 {
		return nil, unretired(map[string]string{webhookSeed: WebhookKey, sealSeed: SealingKey}[file])
	}
	seed := make([]byte, 32)
	rand.Read(seed)
	return seed, r.write(file, []byte(hex.EncodeToString(seed)+"\n"+strings.Join(lines, "\n")+"\n"))
}

// replaceToken makes a new token key. The public keys are written first, so that no token is
// signed with a key that gateways cannot learn.
func replaceToken(r *Ring) error {
	lines, err := lines(r, tokenPublic)
	if err != nil {
		return err
	}
	if len(lines) > 1 {
		return unretired(TokenKey)
	}
	seed := make([]byte, 32)
	rand.Read(seed)
	public := hex.EncodeToString(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
	if err := r.write(tokenPublic, []byte(public+"\n"+strings.Join(lines, "\n")+"\n")); err != nil {
		return err
	}
	return r.write(tokenSeed, []byte(hex.EncodeToString(seed)+"\n"))
}

// replaceSealing makes a new sealing key, and signs its trust document. The seed is written
// first, so that the vault-broker can open what is sealed to the published key.
func replaceSealing(r *Ring) (kid string, err error) {
	root, err := r.Root()
	if err != nil {
		return "", err
	}
	tenant, err := own(r)
	if err != nil {
		return "", err
	}
	seed, err := replaceSeed(r, sealSeed)
	if err != nil {
		return "", err
	}
	doc, err := sealingDoc(seed, tenant)
	if err != nil {
		return "", err
	}
	return doc.KID, r.publish(root, doc)
}

// replaceNKey makes a new NATS key for an identity. The public part of the current one is
// written to the file of former keys first, so that the server accepts both.
func replaceNKey(r *Ring, identity string) (public string, err error) {
	former := identity + nkeyEnd + formerEnd
	if _, err := os.Stat(r.Path(former)); !errors.Is(err, fs.ErrNotExist) {
		return "", errors.Join(err, unretired(NATSKey+"/"+identity))
	}
	current, err := r.NKeyPublic(identity)
	if err != nil {
		return "", err
	}
	pair, err := nkeys.CreateUser()
	if err != nil {
		return "", err
	}
	seed, err := pair.Seed()
	if err != nil {
		return "", err
	}
	if public, err = pair.PublicKey(); err != nil {
		return "", err
	}
	if err := r.write(former, []byte(current+"\n")); err != nil {
		return "", err
	}
	return public, r.write(identity+nkeyEnd, append(seed, '\n'))
}

// replaceNKeys makes a new NATS key for each identity of the ring, except those whose former key
// is still valid, so that it can be repeated after an error. It is an error if there is no other.
func replaceNKeys(r *Ring) error {
	if err := r.MirrorNKeys(); err != nil {
		return err
	}
	former, err := FormerNKeys(r)
	if err != nil {
		return err
	}
	if len(former) == len(identities()) {
		return unretired(NATSKey)
	}
	for _, i := range identities() {
		if former[i] != "" {
			continue
		}
		if _, err := replaceNKey(r, i); err != nil {
			return err
		}
	}
	return nil
}

// retireNKeys retires every former NATS key. It is an error if there is none.
func retireNKeys(r *Ring) error {
	former, err := FormerNKeys(r)
	if err != nil {
		return err
	}
	if len(former) == 0 {
		return noFormer(NATSKey)
	}
	for i := range former {
		if err := os.Remove(r.Path(i + nkeyEnd + formerEnd)); err != nil {
			return err
		}
	}
	return nil
}

// FormerNKeys returns the public keys of the NATS identities that were replaced and not retired,
// by identity.
func FormerNKeys(r *Ring) (map[string]string, error) {
	out := map[string]string{}
	for _, i := range identities() {
		lines, err := lines(r, i+nkeyEnd+formerEnd)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case len(lines) != 1 || !nkeys.IsValidPublicUserKey(lines[0]):
			return nil, fmt.Errorf("%s does not hold the public key of a NATS user", r.Path(i+nkeyEnd+formerEnd))
		default:
			out[i] = lines[0]
		}
	}
	return out, nil
}
