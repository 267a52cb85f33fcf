package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

const signatureFile = "../../../schemas/conformance/signatures.json"

// sigVector is one signature with everything needed to reproduce it. Its key is used
// only in tests.
type sigVector struct {
	About     string          `json:"about"`
	Domain    string          `json:"domain,omitempty"`   // first line of the message; "" = none, or the message has its own domain separation
	Document  json.RawMessage `json:"document,omitempty"` // the signed document without its member "sig"
	Message   string          `json:"message"`            // hex bytes of the signed message
	Seed      string          `json:"seed"`               // hex seed of the key (RFC 8032 section 5.1.5)
	PublicKey string          `json:"public_key"`         // hex bytes of the public key
	KID       string          `json:"kid"`
	Signature string          `json:"signature"` // standard base64
	OK        bool            `json:"ok"`
}

// signatures returns one vector for each of eight domains of package sign (those for artifact
// links, the cell, operators, archives of packs and snapshots have none), one for each of three
// messages with a domain separation of their own (attestation, checkpoint and cosignature), and
// signatures that must not verify.
func signatures(t *testing.T) []sigVector {
	w := sample(t, 1)
	w.escalated(func(*escalation) {})
	var out []sigVector
	seed := func(name string) (*sign.Key, string) {
		h := sha256.Sum256([]byte(name)) // key derives its seed from the name in the same way
		return key(t, name), hex.EncodeToString(h[:])
	}
	doc := func(about, domain, signer string, body canon.Document) {
		k, s := seed(signer)
		raw := contract.Bytes(body)
		out = append(out, sigVector{about, domain, raw, hex.EncodeToString(append([]byte(domain+"\n"), raw...)), s, hex.EncodeToString(k.Public()), k.KID, k.Sign(domain, raw), true})
	}
	raw := func(about, signer string, message, sig []byte) {
		k, s := seed(signer)
		out = append(out, sigVector{About: about, Message: hex.EncodeToString(message), Seed: s, PublicKey: hex.EncodeToString(k.Public()), KID: k.KID, Signature: base64.StdEncoding.EncodeToString(sig), OK: true})
	}
	d, err := derive("t", "s-a", w.source("s-a").Events, 1)
	if err != nil {
		t.Fatal(err)
	}
	var dec contract.Decision
	var rec contract.Receipt
	if err := contract.Decode(d.decisions[0], &dec); err != nil {
		t.Fatal(err)
	}
	if err := contract.Decode(d.receipts[0], &rec); err != nil {
		t.Fatal(err)
	}
	dec.Sig, rec.Sig = "", ""
	doc("a decision", sign.DomainDecision, "policy", &dec)
	doc("a receipt", sign.DomainReceipt, "session-runner", &rec)
	published := contract.TrustKey{Algorithm: "ed25519", KID: w.root.KID, Owner: "provision", PublicKey: base64.StdEncoding.EncodeToString(w.root.Public()), SignerKID: w.root.KID, Tenant: "t", Uses: []string{contract.UseRoot}}
	doc("a key publication", sign.DomainTrust, "root", &published)
	ballot := guard.BallotOf(&contract.Approval{Approver: "bob", CallID: "c-e", Reason: "seen", Tenant: "t", Vote: contract.Grant}, &dec)
	doc("an approver's ballot", sign.DomainApproval, "bob", ballot)
	src := w.source("s-a")
	epoch := trust.SignEpoch(w.root, contract.LogEpoch{Epoch: 2, Reason: "disk lost", Tenant: "t"})
	epoch.Sig = ""
	doc("the opening of a log epoch", sign.DomainEpoch, "root", &epoch)
	p0 := guard.SignedCeilings{Ceilings: ceilings, KID: w.root.KID}
	doc("a document of P0 ceilings", sign.DomainP0, "root", &p0)
	files, err := readTar(build(t, src, w.keys["audit"]))
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := decodeManifest(files[pathManifest])
	if err != nil {
		t.Fatal(err)
	}
	statementSig, err := attestationSig(files[pathAttestation])
	if err != nil {
		t.Fatal(err)
	}
	dsse, err := base64.StdEncoding.DecodeString(statementSig)
	if err != nil {
		t.Fatal(err)
	}
	raw("a pack's DSSE attestation: the pre-authentication encoding", "audit", pae(statement(m)), dsse)
	m.Sig = ""
	doc("a pack's manifest", sign.DomainManifest, "audit", m)
	doc("the first line of a tenant's export", sign.DomainExport, "audit", &ExportHeader{Checkpoint: string(src.Checkpoint), Events: 6, KID: w.keys["audit"].KID, Lamport: m.Lamport, Sessions: 1, Tenant: "t"})
	raw("a checkpoint's note text (C2SP signed-note; the key id before it is left out here)", "audit", src.Head.Text(), w.keys["audit"].Raw(src.Head.Text()))
	line := translog.Cosign(src.Checkpoint, "witness.example", key(t, "witness"), 1767323045)
	blob, err := base64.StdEncoding.DecodeString(line[len("— witness.example "):])
	if err != nil {
		t.Fatal(err)
	}
	raw("a witness's cosignature over that checkpoint (C2SP tlog-cosignature; key id and time before it are left out here)", "witness",
		append([]byte("cosignature/v1\ntime 1767323045\n"), src.Head.Text()...), blob[12:])

	bad := func(about string, change func(v *sigVector)) {
		v := out[1]
		v.About, v.OK = about, false
		change(&v)
		out = append(out, v)
	}
	bad("a receipt under the domain of decisions", func(v *sigVector) {
		v.Domain = sign.DomainDecision
		v.Message = hex.EncodeToString(append([]byte(v.Domain+"\n"), v.Document...))
	})
	bad("a receipt without a domain", func(v *sigVector) { v.Domain, v.Message = "", hex.EncodeToString(v.Document) })
	bad("a receipt with another status", func(v *sigVector) {
		v.Document = bytes.Replace(v.Document, []byte(`"status":"succeeded"`), []byte(`"status":"cancelled"`), 1)
		v.Message = hex.EncodeToString(append([]byte(v.Domain+"\n"), v.Document...))
	})
	bad("a receipt under another key", func(v *sigVector) {
		k, s := seed("policy")
		v.PublicKey, v.Seed, v.KID = hex.EncodeToString(k.Public()), s, k.KID
	})
	bad("a signature whose S is not reduced (RFC 8032 section 5.1.7)", func(v *sigVector) {
		sig, err := base64.StdEncoding.DecodeString(v.Signature)
		if err != nil {
			t.Fatal(err)
		}
		order, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
		le := slices.Clone(sig[32:])
		slices.Reverse(le)
		s := new(big.Int).Add(new(big.Int).SetBytes(le), order).FillBytes(make([]byte, 32))
		slices.Reverse(s)
		v.Signature = base64.StdEncoding.EncodeToString(append(sig[:32:32], s...))
	})
	return out
}

// TestSignatures shows that the published signatures are reproduced, and verify or fail
// as the file lists. `go test -update` writes the file.
func TestSignatures(t *testing.T) {
	all := signatures(t)
	b, err := json.MarshalIndent(map[string]any{"signatures": all}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(signatureFile, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(signatureFile)
	if err != nil || string(kept) != string(b)+"\n" {
		t.Fatalf("signatures.json is not what today's code makes (%v)", err)
	}
	for _, v := range all {
		public, err1 := hex.DecodeString(v.PublicKey)
		message, err2 := hex.DecodeString(v.Message)
		sig, err3 := base64.StdEncoding.DecodeString(v.Signature)
		if err1 != nil || err2 != nil || err3 != nil || sign.KID(public) != v.KID {
			t.Fatal(v.About, err1, err2, err3)
		}
		err := sign.VerifyRaw(public, message, sig)
		if v.Domain != "" {
			err = sign.Verify(public, v.Domain, v.Document, v.Signature)
		}
		if (err == nil) != v.OK {
			t.Errorf("%s: %v", v.About, err)
		}
	}
}
