package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The media types of the OCI image specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// imageUser is the user and group of the process in a container.
const imageUser = 65532

// stateDir is the directory of local state in a container.
const stateDir = "/var/lib/oncebus"

// imageEnv are the settings of a container. The environment of the container can override them.
var imageEnv = []string{
	"ONCEBUS_ROUTES=/etc/oncebus/routes.yaml",
	"ONCEBUS_STATE_DIR=" + stateDir,
	"ONCEBUS_ADMIN_ADDR=0.0.0.0:8080",
}

// descriptor refers to a blob by digest and size.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *imagePlatform    `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type imagePlatform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// imageIndex lists the images of several platforms.
type imageIndex struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// imageManifest is the image of one platform.
type imageManifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations"`
}

// imageConfig says how a container starts.
type imageConfig struct {
	Created      string `json:"created"`
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		User         string              `json:"User"`
		ExposedPorts map[string]struct{} `json:"ExposedPorts"`
		Env          []string            `json:"Env"`
		Entrypoint   []string            `json:"Entrypoint"`
		Cmd          []string            `json:"Cmd"`
		Volumes      map[string]struct{} `json:"Volumes"`
		WorkingDir   string              `json:"WorkingDir"`
		Labels       map[string]string   `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []imageHistory `json:"history"`
}

type imageHistory struct {
	Created   string `json:"created"`
	CreatedBy string `json:"created_by"`
}

// layout collects the blobs of an OCI image layout.
type layout struct{ blobs map[string][]byte } // by the digest in hex

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// add stores a blob and returns the descriptor that refers to it.
func (l *layout) add(mediaType string, data []byte) descriptor {
	digest := digestOf(data)
	l.blobs[strings.TrimPrefix(digest, "sha256:")] = data
	return descriptor{MediaType: mediaType, Digest: digest, Size: len(data)}
}

// addJSON stores a value as a blob.
func (l *layout) addJSON(mediaType string, value any) (descriptor, error) {
	data, err := json.Marshal(value)
	return l.add(mediaType, data), err
}

// imageContent is what the image of one platform contains: the binary and the texts that go with it.
type imageContent struct {
	*binary
	licence, thirdParty []byte
}

// imageOf returns an OCI archive with the images of several platforms. A container engine chooses the image for its
// machine.
func imageOf(contents []imageContent, c commit) ([]byte, error) {
	l := &layout{blobs: map[string][]byte{}}
	index := imageIndex{SchemaVersion: 2, MediaType: typeIndex}
	for _, content := range contents {
		manifest, err := l.addImage(content, c)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", content.platform, err)
		}
		manifest.Platform = &imagePlatform{Architecture: content.arch, OS: content.os}
		index.Manifests = append(index.Manifests, manifest)
	}
	all, err := l.addJSON(typeIndex, index)
	if err != nil {
		return nil, err
	}
	all.Annotations = map[string]string{"org.opencontainers.image.ref.name": imageTag(c)}
	top, err := json.Marshal(imageIndex{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{all}})
	if err != nil {
		return nil, err
	}
	entries := []entry{
		{name: "blobs/", mode: 0o755},
		{name: "blobs/sha256/", mode: 0o755},
		{name: "index.json", mode: 0o644, data: top},
		{name: "oci-layout", mode: 0o644, data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
	}
	for digest, data := range l.blobs {
		entries = append(entries, entry{name: "blobs/sha256/" + digest, mode: 0o644, data: data})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return tarOf(entries, c.time)
}

// imageTag returns the version as an image tag. A tag must not contain a plus sign, so imageTag replaces it.
func imageTag(c commit) string { return strings.ReplaceAll(c.version(), "+", "-") }

// addImage adds the image of one platform and returns its manifest.
func (l *layout) addImage(content imageContent, c commit) (descriptor, error) {
	files, err := tarOf(rootFS(content), c.time)
	if err != nil {
		return descriptor{}, err
	}
	compressed, err := gzipOf(files)
	if err != nil {
		return descriptor{}, err
	}
	layer := l.add(typeLayer, compressed)
	created := c.time.Format(time.RFC3339)
	labels := map[string]string{
		"org.opencontainers.image.title":       "oncebus",
		"org.opencontainers.image.description": "Removes duplicates from Kafka topics: every event comes out exactly once.",
		"org.opencontainers.image.version":     c.version(),
		"org.opencontainers.image.revision":    c.hash,
		"org.opencontainers.image.created":     created,
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
	cfg := imageConfig{Created: created, Architecture: content.arch, OS: content.os}
	cfg.Config.User = fmt.Sprintf("%d:%d", imageUser, imageUser)
	cfg.Config.ExposedPorts = map[string]struct{}{"8080/tcp": {}}
	cfg.Config.Env = imageEnv
	cfg.Config.Entrypoint, cfg.Config.Cmd = []string{"/oncebus"}, []string{"run"}
	cfg.Config.Volumes = map[string]struct{}{stateDir: {}}
	cfg.Config.WorkingDir = "/"
	cfg.Config.Labels = labels
	cfg.RootFS.Type, cfg.RootFS.DiffIDs = "layers", []string{digestOf(files)}
	cfg.History = []imageHistory{{created, "make release"}}
	config, err := l.addJSON(typeConfig, cfg)
	if err != nil {
		return descriptor{}, err
	}
	return l.addJSON(typeManifest, imageManifest{
		SchemaVersion: 2, MediaType: typeManifest, Config: config, Layers: []descriptor{layer}, Annotations: labels,
	})
}

// rootFS returns the files of the image.
func rootFS(content imageContent) []entry {
	dir := func(name string) entry { return entry{name: name, mode: 0o755} }
	return []entry{
		dir("etc/"), dir("etc/oncebus/"), dir("etc/ssl/"), dir("etc/ssl/certs/"),
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: authorities()},
		{name: "oncebus", mode: 0o755, data: content.data},
		// The demo puts its state into a temporary directory.
		{name: "tmp/", mode: 0o777 | fs.ModeSticky},
		dir("usr/"), dir("usr/share/"), dir("usr/share/doc/"), dir("usr/share/doc/oncebus/"),
		{name: "usr/share/doc/oncebus/LICENSE", mode: 0o644, data: content.licence},
		{name: "usr/share/doc/oncebus/THIRD_PARTY_LICENSES", mode: 0o644, data: content.thirdParty},
		dir("var/"), dir("var/lib/"),
		// A container engine initialises a new volume with the content and the owner of this directory.
		{name: strings.TrimPrefix(stateDir, "/") + "/", mode: 0o755, uid: imageUser},
	}
}

// authoritiesModule is the Go module with the certificates of TLS authorities.
const authoritiesModule = "golang.org/x/crypto/x509roots/fallback"

// authorities returns the certificates of the authorities that Mozilla trusts, in PEM. It leaves out authorities that
// Mozilla trusts only for old certificates, because a file of certificates cannot express such a limit.
func authorities() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a Buffer returns no error
		}
	}
	return b.Bytes()
}

// sumsOf returns the content of SHA256SUMS in the format of sha256sum.
func sumsOf(files []entry) []byte {
	var b strings.Builder
	for _, f := range files {
		b.WriteString(strings.TrimPrefix(digestOf(f.data), "sha256:") + "  " + f.name + "\n")
	}
	return []byte(b.String())
}

// mebibytes returns a size in MiB as text for people.
func mebibytes(bytes int) string {
	return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 1, 64) + " MiB"
}
