package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/doctor"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// doctorOptions holds the flags of the command doctor.
type doctorOptions struct {
	mesh      meshOptions
	program   string
	keys      string
	backups   string
	maxAge    time.Duration
	maxBackup time.Duration
	offline   bool
}

// procFS is the file system of processes. Tests replace it.
var procFS = "/proc"

// newDoctorCmd returns the command doctor, which finds weak settings.
func newDoctorCmd(c *env) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find weak settings of a mesh, and how to mend each",
		Long: `Find weak settings of a mesh, and how to mend each: in the configuration that a program
would start with here, in the files of DATA, in the limits of running programs and, unless
--offline is given, in the answers of the mesh at --addr. Parts that cannot be examined
are listed. The exit code is 1 if a finding is weak; notes alone do not change it.`,
		Example:           "  binnacle doctor\n  binnacle doctor --config binnacle.yaml --offline --output json\n  binnacle doctor --backups /var/backups/binnacle",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runDoctor(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.program, "program", config.Up, "`NAME` of the program whose configuration is examined: up, provision or a service")
	f.StringVar(&o.keys, "keys", "", "`FOLDER` of keys (default DATA/keys)")
	f.StringVar(&o.backups, "backups", "", "`FOLDER` of backups (default: not examined)")
	f.DurationVar(&o.maxAge, "max-key-age", 365*24*time.Hour, "age at which a signing key should be rotated")
	f.DurationVar(&o.maxBackup, "max-backup-age", 24*time.Hour, "age of the newest backup")
	f.BoolVar(&o.offline, "offline", false, "do not connect to the mesh")
	flagWords(cmd, "program", config.Programs()...)
	directories(cmd, "keys", "backups")
	o.mesh.declare(cmd)
	return cmd
}

// diagnosis is the document of the command doctor.
type diagnosis struct {
	Findings []doctor.Finding `json:"findings"`
	Unknown  []string         `json:"unknown"` // parts that could not be examined, each with the reason
}

// runDoctor examines the mesh and prints the findings. It returns an error with exit code 1 if
// a finding is weak.
func runDoctor(ctx context.Context, c *env, o *doctorOptions) error {
	if !slices.Contains(config.Programs(), o.program) {
		return fail(exitUsage, "--program: %q is none of %s", o.program, strings.Join(config.Programs(), ", "))
	}
	loaded, err := o.mesh.load(c, o.program)
	if err != nil {
		return err
	}
	data := loaded.Config.Data
	if data == "" {
		data = c.data
	}
	m := &doctor.Mesh{Now: time.Now(), Config: &loaded.Config, MaxAge: o.maxAge, MaxBackup: o.maxBackup}
	d := diagnosis{Unknown: []string{}}
	unknown := func(what string, err error) {
		if err != nil {
			d.Unknown = append(d.Unknown, what+": "+err.Error())
		}
	}
	keys := o.keys
	if keys == "" {
		keys = filepath.Join(data, "keys")
	}
	m.Files, err = secretFiles(data, keys)
	unknown("files", err)
	m.Processes, err = ownProcesses(procFS)
	unknown("processes", err)
	if o.backups != "" {
		b, err := backupsIn(o.backups)
		if err != nil {
			return fail(exitUsage, "--backups: %v", err)
		}
		m.Backups = &b
	}
	if !o.offline {
		m.Live, err = live(ctx, c)
		unknown("the running mesh", err)
	}
	d.Findings = doctor.Check(m)
	if err := c.print(d, func() { printDiagnosis(c, &d) }); err != nil {
		return err
	}
	if slices.ContainsFunc(d.Findings, func(f doctor.Finding) bool { return f.Level == doctor.Weak }) {
		return &exitError{code: exitFailed, err: errSilent}
	}
	return nil
}

// printDiagnosis prints the findings as text.
func printDiagnosis(c *env, d *diagnosis) {
	for _, f := range d.Findings {
		fmt.Fprintf(c.out, "%s  %s  %s\n  %s\n  mend: %s\n", f.Level, f.ID, f.Where, f.Found, f.Fix)
	}
	for _, u := range d.Unknown {
		fmt.Fprintf(c.out, "not examined  %s\n", u)
	}
	if len(d.Findings) == 0 {
		fmt.Fprintln(c.out, "no weak setting found")
	}
}

// secretFiles returns the token files and the folder vault in the folder data of a mesh, and
// the folder of its keys with the private files in it. It omits those that do not exist.
func secretFiles(data, keys string) (out []doctor.File, err error) {
	add := func(path string) error {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Base(path)
		out = append(out, doctor.File{Path: path, Mode: uint32(info.Mode().Perm()), Root: name == "root.seed", Key: strings.HasSuffix(name, ".sign"), Changed: info.ModTime()})
		return nil
	}
	for _, path := range []string{filepath.Join(data, mesh.AdminTokenFile), filepath.Join(data, mesh.OperatorTokenFile), filepath.Join(data, "vault"), keys} {
		if err := add(path); err != nil {
			return out, err
		}
	}
	entries, err := os.ReadDir(keys)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	for _, e := range entries {
		if private := !strings.HasSuffix(e.Name(), ".pub") && !strings.HasSuffix(e.Name(), ".json"); private && e.Type().IsRegular() {
			if err := add(filepath.Join(keys, e.Name())); err != nil {
				return out, err
			}
		}
	}
	return out, err
}

// ownProcesses returns the running programs of meshes, without the process of the command
// itself, from a file system of processes. It omits processes whose limits cannot be read.
func ownProcesses(proc string) (out []doctor.Process, err error) {
	dirs, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return nil, err
	}
	programs := []string{"binnacle"}
	for _, s := range services.Programs() {
		programs = append(programs, s.Name)
	}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		name := strings.TrimSpace(string(comm))
		if err != nil || pid == os.Getpid() || !slices.Contains(programs, name) {
			continue
		}
		limits, err := os.ReadFile(filepath.Join(dir, "limits"))
		if err != nil {
			continue
		}
		if core, ok := coreLimit(limits); ok {
			out = append(out, doctor.Process{Name: name, PID: pid, Core: core})
		}
	}
	return out, nil
}

// coreLimit returns the soft limit of the size of core files in a file /proc/PID/limits.
func coreLimit(limits []byte) (limit string, ok bool) {
	for line := range bytes.Lines(limits) {
		if rest, found := strings.CutPrefix(string(line), "Max core file size"); found {
			fields := strings.Fields(rest)
			return append(fields, "")[0], len(fields) > 0
		}
	}
	return "", false
}

// backupsIn returns the regular files of a folder.
func backupsIn(dir string) ([]doctor.Backup, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := []doctor.Backup{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			out = append(out, doctor.Backup{Path: filepath.Join(dir, e.Name()), Changed: info.ModTime()})
		}
	}
	return out, nil
}

// live returns the state of the mesh at the command's address: the difference of the clocks,
// the approvers, the virtual keys, whether a checkpoint is cosigned, and the default for
// access to secrets.
func live(ctx context.Context, c *env) (*doctor.Live, error) {
	var l doctor.Live
	began := time.Now()
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/identities", nil, nil)
	if err != nil {
		return nil, err
	}
	ended := time.Now()
	defer resp.Body.Close()
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		l.Skew, l.Accuracy = at.Add(500*time.Millisecond).Sub(began.Add(ended.Sub(began)/2)), time.Second+ended.Sub(began) // the header has whole seconds
	}
	var ids identities
	if err := json.NewDecoder(resp.Body).Decode(&ids); err != nil {
		return nil, err
	}
	l.Approvers = approversOf(ids.Identities, contract.Time(ended))
	var keys []struct {
		ID, Expires, Revoked string
		Budget               int64 `json:"budget_usd_micros"`
		Rate                 int64 `json:"rate_calls"`
		Concurrent           int64 `json:"concurrent"`
	}
	if err := c.get(ctx, "/api/v1/keys", &keys); err != nil {
		return nil, err
	}
	for _, k := range keys {
		if k.Revoked == "" {
			expires, _ := contract.ParseTime(k.Expires)
			l.Keys = append(l.Keys, doctor.VirtualKey{ID: k.ID, Expires: expires, Bounded: k.Budget > 0 || k.Rate > 0 || k.Concurrent > 0})
		}
	}
	if l.Witnessed, err = witnessed(ctx, c); err != nil {
		return nil, err
	}
	raw, err := c.governed(ctx, "vault.access", map[string]string{})
	if err != nil {
		return nil, err
	}
	return &l, json.Unmarshal(raw, &struct{ Default *string }{&l.Default})
}

// witnessed reports whether a witness has cosigned a checkpoint of the mesh.
func witnessed(ctx context.Context, c *env) (bool, error) {
	resp, err := c.request(ctx, http.MethodGet, "/log/checkpoint?witnessed=1", nil, nil)
	var x *exitError
	if errors.As(err, &x) && x.doc["code"] == contract.CodeNotFound {
		return false, nil // no checkpoint has a cosignature
	}
	if err != nil {
		return false, err
	}
	return true, resp.Body.Close()
}

// approversOf returns the persons that, at the time now (contract.TimeFormat), are registered,
// are not suspended, and hold the role approver by a grant.
func approversOf(ids []identity, now string) (out []string) {
	in := func(x *identity) bool { return x.To == 0 && (x.Expires == "" || now < x.Expires) }
	for i := range ids {
		p := &ids[i]
		if p.Kind != "principal" || p.Type != "person" || p.Suspended || !in(p) {
			continue
		}
		if slices.ContainsFunc(ids, func(r identity) bool {
			return r.Kind == "role" && r.Principal == p.Principal && r.Role == guard.DefaultRole && in(&r)
		}) {
			out = append(out, p.Principal)
		}
	}
	return out
}
