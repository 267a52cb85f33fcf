package cli

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// imageOptions are the flags of the subcommands of image.
type imageOptions struct {
	folder string // the session-runner's folder of images, as this host sees it
	dryRun bool

	unpinned bool // accept a reference without a digest
	script   string
}

// newImageCmd returns the command image, which manages the images in which packs run.
func newImageCmd(c *env) *cobra.Command {
	var o imageOptions
	folder := func(cmd *cobra.Command) *cobra.Command {
		cmd.Flags().StringVar(&o.folder, "images", "", "the session-runner's `folder` of images, as this host sees it")
		variable(cmd.Flags(), "images", "BINNACLE_IMAGES")
		return cmd
	}
	return group(&cobra.Command{
		Use:     "image COMMAND",
		Short:   "Import, build and list the images in which packs run; remove unused ones",
		Long:    "Import, build, list and remove the images in which packs run. Each is a call of the\nwhole mesh with a decision and a receipt, which one session-runner executes in its own\ncontainerd namespace.",
		Example: "  binnacle image import python.oci.tar --images data/images\n  binnacle image list",
	},
		folder(&cobra.Command{
			Use:               "import FILE|DIR",
			Short:             "Copy an image archive to the folder of images and import it",
			Long:              "Copy an OCI archive, an OCI image layout or the output of docker save to the folder of\nimages and import it. With --images, other session-runners that see the folder import\nan OCI archive when they need it. Without --images, FILE is the name of an archive that\nis in the folder.",
			Example:           "  binnacle image import python.oci.tar --images data/images",
			Args:              takes(1, 1),
			ValidArgsFunction: nil,
			RunE:              func(cmd *cobra.Command, args []string) error { return importImage(cmd.Context(), c, &o, args[0]) },
		}),
		func() *cobra.Command {
			cmd := folder(&cobra.Command{
				Use:               "build NAME",
				Short:             "Build an image from its locked packages and import it",
				Long:              "Build an image with the script deploy/images/base of the source tree, which needs root,\nwrite it and the lock file to the folder of images, and import it.",
				Example:           "  binnacle image build python --images data/images",
				Args:              takes(1, 1),
				ValidArgsFunction: cobra.NoFileCompletions,
				RunE:              func(cmd *cobra.Command, args []string) error { return buildImage(cmd.Context(), c, &o, args[0]) },
			})
			cmd.Flags().StringVar(&o.script, "script", "deploy/images/base", "the `program` that builds images; it is run with the folder and the name")
			return cmd
		}(),
		func() *cobra.Command {
			cmd := &cobra.Command{
				Use:               "pull REF",
				Short:             "Pull an image by its digest from a registry",
				Long:              "Pull an image from a registry that session-runner.registries lists. Other session-runners\nwith the same containerd use it too. REF is HOST/NAME@sha256:DIGEST. A REF without a\ndigest needs --unpinned, and a policy that allows it.",
				Example:           "  binnacle image pull registry.example.com/tools@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
				Args:              takes(1, 1),
				ValidArgsFunction: cobra.NoFileCompletions,
				RunE: func(cmd *cobra.Command, args []string) error {
					return imageCall(cmd.Context(), c, "image.pull", map[string]any{"ref": args[0], "unpinned": o.unpinned})
				},
			}
			cmd.Flags().BoolVar(&o.unpinned, "unpinned", false, "accept a REF without a digest")
			return cmd
		}(),
		&cobra.Command{
			Use:               "list",
			Short:             "List the images of a session-runner and the packs that use them",
			Example:           "  binnacle image list\n  binnacle image list --output json",
			Args:              takes(0, 0),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return imageCall(cmd.Context(), c, "image.list", map[string]any{})
			},
		},
		func() *cobra.Command {
			cmd := &cobra.Command{
				Use:               "gc",
				Short:             "Remove the images that are not in use",
				Long:              "Remove the images that no pack of the session-runner and no held sandbox uses from\ncontainerd, and list them. Archives in the folder of images stay.",
				Example:           "  binnacle image gc --dry-run\n  binnacle image gc",
				Args:              takes(0, 0),
				ValidArgsFunction: cobra.NoFileCompletions,
				RunE: func(cmd *cobra.Command, _ []string) error {
					return imageCall(cmd.Context(), c, "image.gc", map[string]any{"dry_run": o.dryRun})
				},
			}
			cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "only list what would be removed")
			return cmd
		}(),
	)
}

// imageCall makes a call that manages images and prints the images in its output. An import may
// take minutes.
func imageCall(ctx context.Context, c *env, kind string, args map[string]any) error {
	raw, err := governedWithin(ctx, c, 600, kind, args)
	if err != nil {
		return err
	}
	var doc struct {
		Images []struct {
			Digest, Name string
			Size         int64
			Tools        []string
		}
	}
	var whole struct{ Images []json.RawMessage }
	if err := errors.Join(json.Unmarshal(raw, &doc), json.Unmarshal(raw, &whole)); err != nil {
		return err
	}
	columns := []output.Column{{Heading: "DIGEST"}, {Heading: "NAME", Min: 8}, {Heading: "MIB"}, {Heading: "PACKS"}}
	return listed(c, raw, whole.Images, columns, func(g *output.Grid) {
		for _, i := range doc.Images {
			g.Add(i.Digest, cmp.Or(i.Name, "-"), fmt.Sprintf("%.1f", float64(i.Size)/(1<<20)), cmp.Or(strings.Join(i.Tools, ","), "-"))
		}
	})
}

// importImage copies an archive to the folder of images, if that is given, and imports
// it.
func importImage(ctx context.Context, c *env, o *imageOptions, from string) error {
	if o.folder == "" {
		return imageCall(ctx, c, "image.import", map[string]any{"archive": from})
	}
	name, digest, err := storeArchive(o.folder, from)
	if err != nil {
		return err
	}
	args := map[string]any{"archive": name}
	if digest != "" {
		args["digest"] = digest
	}
	return imageCall(ctx, c, "image.import", args)
}

// buildImage runs o.script, which builds the image name in the folder of images, copies the
// script's images.lock there, if there is one, and imports the image.
func buildImage(ctx context.Context, c *env, o *imageOptions, name string) error {
	if o.folder == "" {
		return fail(exitUsage, "--images or BINNACLE_IMAGES must name the folder of images")
	}
	if err := os.MkdirAll(o.folder, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, o.script, o.folder, name)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", o.script, err)
	}
	lock := filepath.Join(filepath.Dir(o.script), "images.lock")
	if body, err := os.ReadFile(lock); err == nil {
		if err := os.WriteFile(filepath.Join(o.folder, "images.lock"), body, 0o644); err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return imageCall(ctx, c, "image.import", map[string]any{"archive": name + ".oci.tar"})
}

// storeArchive copies an archive, or a folder as an archive, to a file in the folder of
// images. It returns the file's name and the image's digest, which is "" if the archive
// has no OCI index or several images. The name contains the digest of the image or, if
// that is "", the digest of the archive.
func storeArchive(folder, from string) (name, digest string, err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", "", err
	}
	tmp, err := os.CreateTemp(folder, ".import-*")
	if err != nil {
		return "", "", err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // fails after the rename
	defer tmp.Close()
	hash := sha256.New()
	to := io.MultiWriter(tmp, hash)
	info, err := os.Stat(from)
	if err == nil && info.IsDir() {
		w := tar.NewWriter(to)
		err = errors.Join(w.AddFS(os.DirFS(from)), w.Close())
	} else if err == nil {
		err = copyFile(to, from)
	}
	if err != nil {
		return "", "", err
	}
	digests, err := indexOf(tmp)
	if err != nil {
		return "", "", err
	}
	id := hex.EncodeToString(hash.Sum(nil))
	if len(digests) == 1 {
		digest = digests[0]
		id = strings.TrimPrefix(digest, "sha256:")
	}
	if err := errors.Join(tmp.Chmod(0o644), tmp.Sync()); err != nil { // the session-runner may be another user
		return "", "", err
	}
	name = filepath.Base(id) + ".tar"
	return name, digest, os.Rename(tmp.Name(), filepath.Join(folder, name))
}

// copyFile writes the contents of a file to w.
func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// indexOf returns the digests in the OCI index of an archive, or none if it has no index.
// It returns an error for a file that is not a tar archive, and for an index that is not valid
// JSON.
func indexOf(f io.ReadSeeker) (digests []string, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("not an image archive: %w", err)
		}
		if strings.TrimPrefix(h.Name, "./") != "index.json" {
			continue
		}
		var doc struct {
			Manifests []struct{ Digest string }
		}
		if err := json.NewDecoder(io.LimitReader(t, 4<<20)).Decode(&doc); err != nil {
			return nil, fmt.Errorf("index.json: %w", err)
		}
		for _, m := range doc.Manifests {
			digests = append(digests, m.Digest)
		}
		return digests, nil
	}
}
