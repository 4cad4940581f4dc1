package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// Paths of the page. The first two show figures, so they need the same protection as /metrics.
const (
	PathStream   = "/live"
	PathSnapshot = "/snapshot"
	pathPage     = "/{$}"
	pathAssets   = "/page/"
)

// policy allows the page to load its own files and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed assets
var embedded embed.FS

// contentTypes has the content types of the files that the page serves, by the extension of their names. Other
// files, such as the library's licence, are not served.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// Register adds the page to a mux. protect wraps the handlers that show figures.
func (p *Page) Register(mux *http.ServeMux, protect func(http.Handler) http.Handler) {
	files, err := fs.Sub(embedded, "assets")
	if err != nil {
		panic(err) // the name is constant
	}
	mux.Handle("GET "+pathPage, secured(asset(files, "index.html")))
	names, err := fs.ReadDir(files, ".")
	if err != nil {
		panic(err)
	}
	for _, f := range names {
		if contentTypes[path.Ext(f.Name())] != "" {
			mux.Handle("GET "+pathAssets+f.Name(), secured(asset(files, f.Name())))
		}
	}
	mux.Handle("GET "+PathStream, secured(protect(http.HandlerFunc(p.serveStream))))
	mux.Handle("GET "+PathSnapshot, secured(protect(http.HandlerFunc(p.serveSnapshot))))
}

// secured sets headers that keep other sites and their scripts out of the page.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		next.ServeHTTP(w, r)
	})
}

// asset serves an embedded file. The browser asks at each load whether the file has changed, so that the page
// always comes from the running build.
func asset(files fs.FS, name string) http.Handler {
	content, err := fs.ReadFile(files, name)
	if err != nil {
		panic(err) // it is embedded
	}
	digest := sha256.Sum256(content)
	tag := `"` + hex.EncodeToString(digest[:8]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentTypes[path.Ext(name)])
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	})
}
