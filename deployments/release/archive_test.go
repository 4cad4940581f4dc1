package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var commitTime = time.Date(2026, 11, 25, 10, 0, 1, 0, time.UTC)

// filesOf reads a tar archive.
func filesOf(t *testing.T, data []byte) (headers map[string]*tar.Header, contents map[string][]byte, names []string) {
	t.Helper()
	headers, contents = map[string]*tar.Header{}, map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents, names
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		headers[h.Name], contents[h.Name], names = h, content, append(names, h.Name)
	}
}

func decompress(t *testing.T, data []byte) ([]byte, gzip.Header) {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return content, r.Header
}

// TestArchiveNamesNoMachine: an archive has the files in order, with the time of the commit and without the name of a
// user.
func TestArchiveNamesNoMachine(t *testing.T) {
	b := &binary{platform: platform{"linux", "amd64"}, data: bytes.Repeat([]byte("program "), 1000)}
	archive, err := archiveOf(b, "oncebus_0.1.0_linux_amd64", commitTime, []entry{{name: "LICENSE"}, {name: "THIRD_PARTY_LICENSES", data: []byte("others")}, {name: "README.md"}})
	if err != nil {
		t.Fatal(err)
	}
	data, header := decompress(t, archive.data)
	if archive.name != "oncebus_0.1.0_linux_amd64.tar.gz" || header.Name != "" || !header.ModTime.IsZero() {
		t.Errorf("%s with gzip header %+v", archive.name, header)
	}
	headers, contents, names := filesOf(t, data)
	const dir = "oncebus_0.1.0_linux_amd64/"
	if want := []string{dir + "LICENSE", dir + "README.md", dir + "THIRD_PARTY_LICENSES", dir + "oncebus"}; !slices.Equal(names, want) {
		t.Fatalf("files %v, want %v", names, want)
	}
	for name, h := range headers {
		mode := int64(0o644)
		if name == dir+"oncebus" {
			mode = 0o755
		}
		if h.Mode != mode || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || !h.ModTime.Equal(commitTime) {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if !bytes.Equal(contents[dir+"oncebus"], b.data) || string(contents[dir+"THIRD_PARTY_LICENSES"]) != "others" {
		t.Error("the archive has other content")
	}
}

// read decodes the blob of an image to which a descriptor refers, and checks that the blob matches the descriptor.
func read(t *testing.T, blobs map[string][]byte, d descriptor, into any) {
	t.Helper()
	data, ok := blobs["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
	if !ok || digestOf(data) != d.Digest || len(data) != d.Size {
		t.Fatalf("blob %+v: %d bytes with digest %s", d, len(data), digestOf(data))
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// TestImage follows the references of an image from its index to the files, and checks what a container will find.
func TestImage(t *testing.T) {
	c := commit{hash: "f7600c3f3b2c5e6d", time: commitTime, tag: "v0.1.0"}
	content := func(arch string) imageContent {
		return imageContent{&binary{platform: platform{"linux", arch}, data: []byte(arch)}, []byte("licence"), []byte("others")}
	}
	archive, err := imageOf([]imageContent{content("amd64"), content("arm64")}, c)
	if err != nil {
		t.Fatal(err)
	}
	_, blobs, names := filesOf(t, archive)
	if !slices.IsSorted(names) || string(blobs["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("files %v", names)
	}
	var top, all imageIndex
	if err := json.Unmarshal(blobs["index.json"], &top); err != nil || len(top.Manifests) != 1 {
		t.Fatalf("%+v %v", top, err)
	}
	if ref := top.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; ref != "0.1.0" {
		t.Errorf("the image is tagged %q", ref)
	}
	read(t, blobs, top.Manifests[0], &all)
	referred := 1
	for i, arch := range []string{"amd64", "arm64"} {
		var manifest imageManifest
		var config imageConfig
		if p := all.Manifests[i].Platform; *p != (imagePlatform{arch, "linux"}) {
			t.Errorf("image %d is for %+v", i, p)
		}
		read(t, blobs, all.Manifests[i], &manifest)
		read(t, blobs, manifest.Config, &config)
		layer := blobs["blobs/sha256/"+strings.TrimPrefix(manifest.Layers[0].Digest, "sha256:")]
		if digestOf(layer) != manifest.Layers[0].Digest || len(layer) != manifest.Layers[0].Size {
			t.Errorf("layer %+v has digest %s", manifest.Layers[0], digestOf(layer))
		}
		referred += 3
		files, header := decompress(t, layer)
		if !slices.Equal(config.RootFS.DiffIDs, []string{digestOf(files)}) || !header.ModTime.IsZero() {
			t.Errorf("layers %v, the files have %s", config.RootFS.DiffIDs, digestOf(files))
		}
		if config.Architecture != arch || config.Config.Labels["org.opencontainers.image.revision"] != c.hash || config.Created != "2026-11-25T10:00:01Z" {
			t.Errorf("%+v", config)
		}
		checkRootFS(t, files, arch)
	}
	if referred != len(names)-4 {
		t.Errorf("%d blobs are referred to, of %d", referred, len(names)-4)
	}
}

func checkRootFS(t *testing.T, files []byte, program string) {
	t.Helper()
	headers, contents, names := filesOf(t, files)
	if !slices.IsSorted(names) || string(contents["oncebus"]) != program || headers["oncebus"].Mode != 0o755 {
		t.Errorf("files %v", names)
	}
	if h := headers["var/lib/oncebus/"]; h.Uid != imageUser || h.Gid != imageUser {
		t.Errorf("state directory %+v", h)
	}
	if mode := headers["tmp/"].FileInfo().Mode(); mode.Perm() != 0o777 || mode&fs.ModeSticky == 0 {
		t.Errorf("/tmp has mode %v", mode)
	}
	for name, h := range headers {
		if name != "var/lib/oncebus/" && h.Uid != 0 || !h.ModTime.Equal(commitTime) {
			t.Errorf("%s: %+v", name, h)
		}
		if parent := path.Dir(strings.TrimSuffix(name, "/")); parent != "." && headers[parent+"/"] == nil {
			t.Errorf("%s has no parent directory", name)
		}
	}
	valid := 0
	for rest := contents["etc/ssl/certs/ca-certificates.crt"]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !certificate.IsCA {
			t.Fatalf("no authority: %v", err)
		}
		valid++
	}
	if valid < 50 {
		t.Errorf("%d authorities", valid)
	}
}

// TestImageAgreesWithDockerfile: a container behaves the same whether its image was built by this command or from the
// Dockerfile.
func TestImageAgreesWithDockerfile(t *testing.T) {
	data, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, image, ok := strings.Cut(string(data), "\nFROM scratch\n")
	if !ok {
		t.Fatal("the Dockerfile has no image from scratch")
	}
	image = regexp.MustCompile(`\\\n\s*`).ReplaceAllString(image, "")
	for _, want := range []string{
		"USER 65532:65532", "ENV " + strings.Join(imageEnv, " "), "VOLUME " + stateDir, "EXPOSE 8080", `ENTRYPOINT ["/oncebus"]`, `CMD ["run"]`,
		"COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt", "COPY --from=build --chown=65532:65532 /out/tmp /tmp",
	} {
		if !slices.Contains(strings.Split(image, "\n"), want) {
			t.Errorf("the Dockerfile has no line %s", want)
		}
	}
}

func TestSums(t *testing.T) {
	const want = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n" +
		"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  b\n"
	if got := string(sumsOf([]entry{{name: "a"}, {name: "b", data: []byte("abc")}})); got != want {
		t.Errorf("got\n%s", got)
	}
}
