package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// LogEpoch is the data of provision.log_epoch_opened: the holder of the root key
// accepts that the ledger no longer is what its last checkpoint committed to, and
// that a new log begins.
type LogEpoch struct {
	Checkpoint string `json:"checkpoint"` // digest of the last epoch's last checkpoint
	Epoch      int64  `json:"epoch"`      // of the new log; the first is 1
	Reason     string `json:"reason"`
	Sig        string `json:"sig,omitempty"`
	SignerKID  string `json:"signer_kid"` // a root key
	Tenant     string `json:"tenant"`
}

// Canonical implements canon.Document.
func (l *LogEpoch) Canonical(c *canon.Codec) {
	c.Str("checkpoint", &l.Checkpoint)
	c.Int("epoch", &l.Epoch)
	c.Str("reason", &l.Reason)
	c.OptStr("sig", &l.Sig)
	c.Str("signer_kid", &l.SignerKID)
	c.Str("tenant", &l.Tenant)
}
