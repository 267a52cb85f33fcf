package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// LogEpoch is the data of provision.log_epoch_opened. With this event, the holder of a
// root key accepts that the ledger no longer matches its last checkpoint, and opens a
// new log.
type LogEpoch struct {
	Checkpoint string `json:"checkpoint"` // digest of the last checkpoint of the previous epoch
	Epoch      int64  `json:"epoch"`      // number of the new log; the first log is 1
	Reason     string `json:"reason"`
	Sig        string `json:"sig,omitempty"`
	SignerKID  string `json:"signer_kid"` // id of the root key that signed
	Tenant     string `json:"tenant"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (l *LogEpoch) Canonical(c *canon.Codec) {
	c.Str("checkpoint", &l.Checkpoint)
	c.Int("epoch", &l.Epoch)
	c.Str("reason", &l.Reason)
	c.OptStr("sig", &l.Sig)
	c.Str("signer_kid", &l.SignerKID)
	c.Str("tenant", &l.Tenant)
}
