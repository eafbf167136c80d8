// Bundles the page into ../dist, or into the folder given as argument. The
// output is committed: the same sources and the same locked versions give the
// same bytes.
import { build } from 'esbuild'
import { copyFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

const here = dirname(fileURLToPath(import.meta.url))
const out = resolve(process.argv[2] ?? join(here, '..', 'dist'))

await rm(out, { recursive: true, force: true })
await mkdir(out, { recursive: true })
await build({
  absWorkingDir: here,
  entryPoints: { page: 'src/main.tsx' },
  outdir: out,
  bundle: true,
  minify: true,
  format: 'esm',
  target: ['es2022'],
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none', // licences.txt has them whole
  logLevel: 'warning',
})
for (const name of ['index.html', 'favicon.svg']) await copyFile(join(here, 'src', name), join(out, name))

const parts = []
for (const name of ['preact', '@preact/signals', '@preact/signals-core', 'uplot']) {
  const dir = join(here, 'node_modules', name)
  const { version } = JSON.parse(await readFile(join(dir, 'package.json'), 'utf8'))
  parts.push(`${name} ${version}\n\n${(await readFile(join(dir, 'LICENSE'), 'utf8')).trim()}\n`)
}
await writeFile(join(out, 'licences.txt'), parts.join('\n---\n\n'))
